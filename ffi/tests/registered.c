/*
 * Memory of spark_ccl_alloc: calls go without copies where they ask for that, and only there.
 */
#include "check.h"

enum { COUNT = 5000 };

static double *memory;
static double own[COUNT], result[COUNT];
static spark_ccl_options registered = SPARK_CCL_OPTIONS_INIT;

#define TYPE SPARK_CCL_FLOAT64

static void fill(double *to)
{
    for (int i = 0; i < COUNT; i++) {
        to[i] = rank + i;
    }
}

static void expect_sum(const double *seen, const char *what)
{
    for (int i = 0; i < COUNT; i++) {
        require(seen[i] == size * (size - 1) / 2.0 + (double)size * i, what);
    }
}

/* Where buffers happen to lie in such memory, on some ranks or elsewhere on each, that changes
 * nothing. */
static void by_chance(void)
{
    double *send = rank == 0 ? memory : own;
    fill(send);
    SUCCEEDS(spark_ccl_all_reduce(comm, send, result, COUNT, TYPE, SPARK_CCL_SUM, NULL));
    expect_sum(result, "memory on one rank");
    send = memory + COUNT + 10 * rank;
    fill(send);
    SUCCEEDS(spark_ccl_all_reduce(comm, send, send, COUNT, TYPE, SPARK_CCL_SUM, NULL));
    expect_sum(send, "memory at other offsets");
}

/* Every call that asks for it, with the block of each rank at the same offset on all of them. */
static void on_demand(void)
{
    size_t block = COUNT / (size_t)size, mine = block * (size_t)rank;
    double *send = memory, *recv = memory + COUNT;
    int root = size - 1;
    fill(send);
    SUCCEEDS(spark_ccl_all_reduce(comm, send, recv, COUNT, TYPE, SPARK_CCL_SUM, &registered));
    expect_sum(recv, "all_reduce");
    SUCCEEDS(spark_ccl_reduce(comm, send, recv, COUNT, TYPE, SPARK_CCL_MAX, root, &registered));
    require(rank != root || recv[1] == size, "reduce");
    SUCCEEDS(spark_ccl_broadcast(comm, send, recv, COUNT, TYPE, 0, &registered));
    require(recv[COUNT - 1] == COUNT - 1, "broadcast");
    double *ours = rank == root ? send : recv;
    SUCCEEDS(spark_ccl_broadcast(comm, send, send, COUNT, TYPE, root, &registered));
    require(send[0] == root, "broadcast in place");
    fill(send);
    SUCCEEDS(spark_ccl_reduce(comm, send, ours, COUNT, TYPE, SPARK_CCL_MAX, root, &registered));
    require(rank != root || send[1] == size, "reduce in place");
    fill(send);
    SUCCEEDS(spark_ccl_all_gather(comm, send, recv, block, TYPE, &registered));
    require(recv[block * (size_t)root] == root, "all_gather");
    SUCCEEDS(spark_ccl_reduce_scatter(comm, send, recv, block, TYPE, SPARK_CCL_MIN, &registered));
    require(recv[0] == (double)mine, "reduce_scatter");
    SUCCEEDS(spark_ccl_gather(comm, send, recv, block, TYPE, root, &registered));
    require(rank != root || recv[block * (size_t)root] == root, "gather");
    SUCCEEDS(spark_ccl_scatter(comm, send, recv, block, TYPE, root, &registered));
    require(recv[0] == root + (double)mine, "scatter");
    SUCCEEDS(spark_ccl_all_to_all(comm, send, recv, block, TYPE, &registered));
    require(recv[block * (size_t)root] == root + (double)mine, "all_to_all");
    SUCCEEDS(spark_ccl_barrier(comm, &registered));
    SUCCEEDS(spark_ccl_all_reduce(comm, send, send, COUNT, TYPE, SPARK_CCL_SUM, &registered));
    expect_sum(send, "all_reduce in place");
}

/* Buffers that a call uses must lie there; others may be anywhere. */
static void elsewhere(void)
{
    double *end = memory + 4 * COUNT;
    REFUSED(spark_ccl_all_reduce(comm, own, memory, COUNT, TYPE, SPARK_CCL_SUM, &registered),
            "send buffer of 40000 bytes");
    REFUSED(spark_ccl_all_reduce(comm, memory, result, COUNT, TYPE, SPARK_CCL_SUM, &registered),
            "receive buffer of 40000 bytes");
    REFUSED(spark_ccl_all_reduce(comm, own, own, COUNT, TYPE, SPARK_CCL_SUM, &registered), "in-place");
    REFUSED(spark_ccl_all_reduce(comm, memory, end - 1, 2, TYPE, SPARK_CCL_SUM, &registered),
            "spark_ccl_alloc");
    REFUSED(spark_ccl_all_reduce(comm, NULL, memory, 1, TYPE, SPARK_CCL_SUM, &registered), "null");
    REFUSED(spark_ccl_send(comm, own, 1, TYPE, 0, &registered), "send buffer");
    REFUSED(spark_ccl_recv(comm, own, 1, TYPE, 0, &registered), "receive buffer");
    /* Only the root could be in place: its blocks would be at other offsets than the others'. */
    size_t mine = (size_t)rank;
    if (rank == 0) {
        REFUSED(spark_ccl_gather(comm, memory + mine, memory, 1, TYPE, 0, &registered), "in place");
        REFUSED(spark_ccl_scatter(comm, memory, memory + mine, 1, TYPE, 0, &registered), "in place");
    }
    SUCCEEDS(spark_ccl_broadcast(comm, rank == 0 ? memory : own, memory + COUNT, 1, TYPE, 0,
                                 &registered));
    SUCCEEDS(spark_ccl_all_reduce(comm, own, own, 0, TYPE, SPARK_CCL_SUM, &registered));
}

/* With SPARK_CCL_PATH=zero-copy, only calls that ask for it are possible. */
static void without_copies(void)
{
    SUCCEEDS(spark_ccl_all_reduce(comm, memory, memory, COUNT, TYPE, SPARK_CCL_SUM, &registered));
    spark_ccl_result plain =
        spark_ccl_all_reduce(comm, memory, memory, COUNT, TYPE, SPARK_CCL_SUM, NULL);
    require((plain == SPARK_CCL_SUCCESS) == (size == 1), "a plain call on the zero-copy path");
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        require(setenv("SPARK_CCL_PATH", argv[1], 1) == 0, "setenv");
    }
    registered.registered = 1;
    join();
    void *all = NULL;
    SUCCEEDS(spark_ccl_alloc(comm, 4 * COUNT * sizeof(double), &all));
    memory = (double *)all;
    if (argc > 1) {
        without_copies();
    } else {
        require(memory[0] == 0 && memory[4 * COUNT - 1] == 0, "memory is zero at first");
        by_chance();
        on_demand();
        elsewhere();
    }
    REFUSED(spark_ccl_free(comm, memory + 1), "begins there");
    SUCCEEDS(spark_ccl_free(comm, NULL));
    SUCCEEDS(spark_ccl_free(comm, memory));
    return leave();
}
