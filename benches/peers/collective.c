/* Times a collective of MPI on floats, in the way that spark-perf times spark-ccl's.
 *
 *   collective NAME BYTES CALLS ROOM
 *
 * BYTES are those of a rank's larger buffer. Calls move through buffers of ROOM bytes; if one call
 * takes more, all calls use the same memory, and it is as hot as its size allows. CALLS calls are
 * timed at a stretch; the time is that of the slowest rank. */

#include "common.h"

#include <mpi.h>

/* The period of the inputs, in elements: a prime, so that no block is like its neighbour. */
#define PERIOD 1021

static int rank, size;

/* Elements of the buffers, and the count argument. */
struct layout {
    long count, send, recv;
};

struct collective {
    const char *name;
    struct layout (*layout)(long elements);
    int (*call)(const float *send, float *recv, int count);
    int (*call_in_place)(float *buffer, int count);
    /* Where, in the buffer of a call in place, this rank's input starts. */
    int input_is_own_block;
    /* The other ranks' receive buffers are not its business. */
    int result_is_at_root;
    float (*expected)(long index, long count);
};

/* Equal shares of the ranks, of whole 16 bytes. */
static long share(long elements)
{
    return elements / size / 4 * 4;
}

static struct layout whole(long elements)
{
    return (struct layout){elements, elements, elements};
}

static struct layout gathered(long elements)
{
    return (struct layout){share(elements), share(elements), share(elements) * size};
}

static struct layout scattered(long elements)
{
    return (struct layout){share(elements), share(elements) * size, share(elements)};
}

static struct layout exchanged(long elements)
{
    return (struct layout){share(elements), share(elements) * size, share(elements) * size};
}

static float input(int source, long index)
{
    return (float)((source + 1) * (1 + (int)index % PERIOD));
}

static float sum(long index)
{
    return (float)(size * (size + 1) / 2) * input(0, index);
}

static int all_reduce(const float *send, float *recv, int count)
{
    return MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int all_reduce_in_place(float *buffer, int count)
{
    return all_reduce(MPI_IN_PLACE, buffer, count);
}

static float whole_sum_expected(long index, long count)
{
    (void)count;
    return sum(index);
}

static int all_gather(const float *send, float *recv, int count)
{
    return MPI_Allgather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, MPI_COMM_WORLD);
}

static int all_gather_in_place(float *buffer, int count)
{
    return all_gather(MPI_IN_PLACE, buffer, count);
}

static float all_gather_expected(long index, long count)
{
    return input((int)(index / count), index % count);
}

static int reduce_scatter(const float *send, float *recv, int count)
{
    return MPI_Reduce_scatter_block(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int reduce_scatter_in_place(float *buffer, int count)
{
    return reduce_scatter(MPI_IN_PLACE, buffer, count);
}

static float reduce_scatter_expected(long index, long count)
{
    return sum(rank * count + index);
}

static int reduce(const float *send, float *recv, int count)
{
    return MPI_Reduce(send, recv, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}

static int reduce_in_place(float *buffer, int count)
{
    return rank == 0 ? reduce(MPI_IN_PLACE, buffer, count) : reduce(buffer, NULL, count);
}

static int broadcast_in_place(float *buffer, int count)
{
    return MPI_Bcast(buffer, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

/* MPI has no such form: the root copies. */
static int broadcast(const float *send, float *recv, int count)
{
    if (rank == 0)
        memcpy(recv, send, (size_t)count * sizeof(float));
    return broadcast_in_place(recv, count);
}

static float broadcast_expected(long index, long count)
{
    (void)count;
    return input(0, index);
}

static int all_to_all(const float *send, float *recv, int count)
{
    return MPI_Alltoall(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, MPI_COMM_WORLD);
}

static int all_to_all_in_place(float *buffer, int count)
{
    return all_to_all(MPI_IN_PLACE, buffer, count);
}

static float all_to_all_expected(long index, long count)
{
    return input((int)(index / count), rank * count + index % count);
}

static const struct collective collectives[] = {
    {"all_reduce", whole, all_reduce, all_reduce_in_place, 0, 0, whole_sum_expected},
    {"all_gather", gathered, all_gather, all_gather_in_place, 1, 0, all_gather_expected},
    {"reduce_scatter", scattered, reduce_scatter, reduce_scatter_in_place, 0, 0,
     reduce_scatter_expected},
    {"reduce", whole, reduce, reduce_in_place, 0, 1, whole_sum_expected},
    {"broadcast", whole, broadcast, broadcast_in_place, 0, 0, broadcast_expected},
    {"alltoall", exchanged, all_to_all, all_to_all_in_place, 0, 0, all_to_all_expected},
};

static const struct collective *find(const char *name)
{
    for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++)
        if (strcmp(collectives[i].name, name) == 0)
            return &collectives[i];
    fail("unknown collective");
    return NULL;
}

struct run {
    const struct collective *collective;
    struct layout layout;
    struct parts send, recv;
    int in_place;
};

static void call(const struct run *run, long turn)
{
    float *recv = part(run->recv, turn);
    int count = (int)run->layout.count;
    int status = run->in_place ? run->collective->call_in_place(recv, count)
                               : run->collective->call(part(run->send, turn), recv, count);
    if (status != MPI_SUCCESS)
        fail("the collective failed");
}

/* The times of a call, each of the rank that has the most. */
static struct times measure(const struct run *run, long calls)
{
    if (!run->in_place)
        touch(run->send);
    touch(run->recv);
    call(run, run->recv.turns - 1);
    MPI_Barrier(MPI_COMM_WORLD);
    struct times start = now(CLOCK_PROCESS_CPUTIME_ID);
    for (long i = 0; i < calls; i++)
        call(run, i);
    struct times own = per_call(start, now(CLOCK_PROCESS_CPUTIME_ID), calls), most;
    MPI_Allreduce(&own, &most, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

/* Elements, over all ranks, that come out wrong. */
static long check(const struct run *run)
{
    struct layout layout = run->layout;
    float *recv = part(run->recv, 0), *source = part(run->send, 0);
    for (long i = 0; i < layout.recv; i++)
        recv[i] = -1;
    if (run->in_place)
        source = recv + (run->collective->input_is_own_block ? rank * layout.count : 0);
    for (long i = 0; i < layout.send; i++)
        source[i] = input(rank, i);
    call(run, 0);
    long own = 0, all = 0;
    long results = rank != 0 && run->collective->result_is_at_root ? 0 : layout.recv;
    for (long i = 0; i < results; i++)
        own += recv[i] != run->collective->expected(i, layout.count);
    MPI_Allreduce(&own, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 5)
        fail("expected NAME BYTES CALLS ROOM");
    struct run run = {.collective = find(argv[1])};
    run.layout = run.collective->layout(number(argv[2]) / (long)sizeof(float));
    long calls = number(argv[3]), room = number(argv[4]);
    /* In place, the receive buffer holds the input, too. */
    struct layout layout = run.layout;
    long larger = layout.send > layout.recv ? layout.send : layout.recv;
    run.recv = allocate(larger, turns_in(room, larger));
    run.send = allocate(layout.send, run.recv.turns);

    struct times out_of_place = measure(&run, calls);
    long wrong = check(&run);
    run.in_place = 1;
    struct times in_place = measure(&run, calls);
    wrong += check(&run);
    if (rank == 0)
        print_result(out_of_place, in_place, wrong);
    MPI_Finalize();
    return 0;
}
