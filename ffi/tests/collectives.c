/*
 * Every collective, as many ranks as a launcher has started: each element of each rank has a value
 * of its own.
 */
#include "check.h"

#include <math.h>

enum { MOST_RANKS = 8, MOST = 5000 };

static int64_t in[MOST_RANKS * MOST], out[MOST_RANKS * MOST];

#define TYPE SPARK_CCL_INT64

/* Element `i` of a rank's values. */
static int64_t value(int of, size_t i) { return 1000003 * (of + 1) + (int64_t)i * 7; }

static int64_t sum(size_t i)
{
    int64_t all = 0;
    for (int other = 0; other < size; other++) {
        all += value(other, i);
    }
    return all;
}

static void fill(int64_t *buffer, int of, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        buffer[i] = value(of, first + i);
    }
}

static void expect(const int64_t *buffer, int of, size_t first, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        require(buffer[i] == value(of, first + i), what);
    }
}

static void expect_sum(const int64_t *buffer, size_t first, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        require(buffer[i] == sum(first + i), what);
    }
}

static void reductions(size_t count, int root)
{
    size_t all = count * (size_t)size, own = count * (size_t)rank;
    fill(in, rank, 0, all);
    SUCCEEDS(spark_ccl_all_reduce(comm, in, out, count, TYPE, SPARK_CCL_SUM, NULL));
    expect_sum(out, 0, count, "all_reduce");
    SUCCEEDS(spark_ccl_reduce(comm, in, rank == root ? out : NULL, count, TYPE, SPARK_CCL_SUM, root,
                              NULL));
    if (rank == root) {
        expect_sum(out, 0, count, "reduce");
    }
    SUCCEEDS(spark_ccl_reduce_scatter(comm, in, out, count, TYPE, SPARK_CCL_SUM, NULL));
    expect_sum(out, own, count, "reduce_scatter");
    SUCCEEDS(spark_ccl_reduce_scatter(comm, in, in + own, count, TYPE, SPARK_CCL_SUM, NULL));
    expect_sum(in + own, own, count, "reduce_scatter in place");
    fill(in, rank, 0, all);
    SUCCEEDS(spark_ccl_all_reduce(comm, in, in, count, TYPE, SPARK_CCL_SUM, NULL));
    expect_sum(in, 0, count, "all_reduce in place");
    fill(in, rank, 0, all);
    SUCCEEDS(spark_ccl_reduce(comm, in, in, count, TYPE, SPARK_CCL_SUM, root, NULL));
    if (rank == root) {
        expect_sum(in, 0, count, "reduce in place");
    }
}

static void factors(void)
{
    int64_t factor = rank + 2, own = 5, result = 0, expected = 0;
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.factor = &factor;
    for (int other = 0; other < size; other++) {
        expected += 5 * (other + 2);
    }
    SUCCEEDS(spark_ccl_all_reduce(comm, &own, &result, 1, TYPE, SPARK_CCL_PRE_MUL_SUM, &options));
    require(result == expected, "a sum with factors");
    REFUSED(spark_ccl_all_reduce(comm, &own, &result, 1, TYPE, SPARK_CCL_PRE_MUL_SUM, NULL),
            "factor");
    double mean[2] = {(double)rank, -(double)rank};
    SUCCEEDS(spark_ccl_all_reduce(comm, mean, mean, 2, SPARK_CCL_FLOAT64, SPARK_CCL_AVG, NULL));
    require(fabs(mean[0] - (size - 1) / 2.0) < 1e-12 && fabs(mean[1] + (size - 1) / 2.0) < 1e-12, "a mean");
}

static void moves(size_t count, int root)
{
    size_t all = count * (size_t)size, own = count * (size_t)rank;
    fill(in, rank, 0, count);
    SUCCEEDS(spark_ccl_all_gather(comm, in, out, count, TYPE, NULL));
    for (int other = 0; other < size; other++) {
        expect(out + count * (size_t)other, other, 0, count, "all_gather");
    }
    memset(out, 0, sizeof out);
    fill(out + own, rank, 0, count);
    SUCCEEDS(spark_ccl_all_gather(comm, out + own, out, count, TYPE, NULL));
    for (int other = 0; other < size; other++) {
        expect(out + count * (size_t)other, other, 0, count, "all_gather in place");
    }
    memset(out, 0, sizeof out);
    SUCCEEDS(spark_ccl_gather(comm, in, rank == root ? out : NULL, count, TYPE, root, NULL));
    for (int other = 0; other < size && rank == root; other++) {
        expect(out + count * (size_t)other, other, 0, count, "gather");
    }
    SUCCEEDS(spark_ccl_broadcast(comm, rank == root ? in : NULL, out, count, TYPE, root, NULL));
    expect(out, root, 0, count, "broadcast");
    fill(in, rank, 0, all);
    SUCCEEDS(spark_ccl_scatter(comm, rank == root ? in : NULL, out, count, TYPE, root, NULL));
    expect(out, root, own, count, "scatter");
    void *to = rank == root ? in + own : out;
    SUCCEEDS(spark_ccl_scatter(comm, rank == root ? in : NULL, to, count, TYPE, root, NULL));
    expect((int64_t *)to, root, own, count, "scatter in place");
    SUCCEEDS(spark_ccl_all_to_all(comm, in, out, count, TYPE, NULL));
    for (int other = 0; other < size; other++) {
        expect(out + count * (size_t)other, other, own, count, "all_to_all");
    }
    SUCCEEDS(spark_ccl_all_to_all(comm, in, in, count, TYPE, NULL));
    for (int other = 0; other < size; other++) {
        expect(in + count * (size_t)other, other, own, count, "all_to_all in place");
    }
}

/* Rank r sends p + r elements to rank p; they are received in blocks that are apart. */
static void blocks(void)
{
    size_t sent[MOST_RANKS], taken[MOST_RANKS], begins[MOST_RANKS];
    for (size_t p = 0; p < (size_t)size; p++) {
        sent[p] = taken[p] = p + (size_t)rank;
        begins[p] = 50 * p + 3;
    }
    fill(in, rank, 0, MOST);
    SUCCEEDS(spark_ccl_all_to_all_v(comm, in, sent, NULL, out, taken, begins, TYPE, NULL));
    for (int p = 0; p < size; p++) {
        size_t first = 0;
        for (int before = 0; before < rank; before++) {
            first += (size_t)(before + p);
        }
        expect(out + begins[p], p, first, taken[p], "all_to_all_v");
    }
    REFUSED(spark_ccl_all_to_all_v(comm, in, NULL, NULL, out, taken, NULL, TYPE, NULL), "counts");
}

/* Elements of each type arrive unchanged. */
static void types(void)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    for (int type = 0; type < 12; type++) {
        unsigned char own[24], all[24 * MOST_RANKS];
        for (size_t i = 0; i < sizeof own; i++) {
            own[i] = (unsigned char)(rank * 31 + (int)i + type);
        }
        size_t count = sizeof own / sizes[type];
        SUCCEEDS(spark_ccl_all_gather(comm, own, all, count, (spark_ccl_dtype)type, NULL));
        for (size_t i = 0; i < sizeof own * (size_t)size; i++) {
            int of = (int)(i / sizeof own), at = (int)(i % sizeof own);
            require(all[i] == (unsigned char)(of * 31 + at + type), "a byte of a type");
        }
    }
}

/* A small whole number as an element: floats by their exponent's and their fraction's bits, which
 * hold it exactly. */
static void encode(int type, unsigned number, unsigned char *element)
{
    static const struct {
        unsigned size, exponent, fraction;
    } kinds[] = {{1, 0, 0}, {1, 0, 0}, {4, 0, 0},  {4, 0, 0},   {8, 0, 0}, {8, 0, 0},
                 {2, 5, 10}, {4, 8, 23}, {8, 11, 52}, {2, 8, 7}, {1, 4, 3}, {1, 5, 2}};
    uint64_t bits = number;
    if (kinds[type].exponent != 0) {
        unsigned power = 0;
        while (number >> (power + 1) != 0) {
            power++;
        }
        uint64_t fraction = ((uint64_t)number << kinds[type].fraction >> power) - (UINT64_C(1) << kinds[type].fraction);
        bits = ((uint64_t)power + (1u << (kinds[type].exponent - 1)) - 1) << kinds[type].fraction | fraction;
    }
    /* The lowest bits come first on the machines that the library is for. */
    memcpy(element, &bits, kinds[type].size);
}

/* Every reduction of every type: rank 0 has 2, the others 1. */
static void operations(void)
{
    for (int type = 0; type < 12; type++) {
        for (int op = SPARK_CCL_SUM; op <= SPARK_CCL_PRE_MUL_SUM; op++) {
            unsigned all = (unsigned)size, own = rank == 0 ? 2 : 1;
            unsigned char send[8] = {0}, recv[8] = {0}, expected[8] = {0}, factor[8] = {0};
            const unsigned results[] = {all, 2, 2, all > 1 ? 1u : 2u, all, 2 * all};
            spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
            /* Sums of ones, and means of what divides without a rest, are exact in all types. */
            if (op == SPARK_CCL_SUM || op == SPARK_CCL_PRE_MUL_SUM) {
                own = 1;
            } else if (op == SPARK_CCL_AVG) {
                own = all;
            }
            encode(type, own, send);
            encode(type, results[op], expected);
            encode(type, 2, factor);
            options.factor = op == SPARK_CCL_PRE_MUL_SUM ? factor : NULL;
            SUCCEEDS(spark_ccl_all_reduce(comm, send, recv, 1, (spark_ccl_dtype)type, (spark_ccl_op)op, &options));
            require(memcmp(recv, expected, sizeof recv) == 0, "a reduction of a type");
        }
    }
}

static void messages(void)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    fill(in, rank, 0, MOST);
    SUCCEEDS(spark_ccl_group_start());
    SUCCEEDS(spark_ccl_group_start());
    SUCCEEDS(spark_ccl_recv(comm, out, MOST, TYPE, previous, NULL));
    SUCCEEDS(spark_ccl_group_end());
    SUCCEEDS(spark_ccl_send(comm, in, MOST, TYPE, next, NULL));
    SUCCEEDS(spark_ccl_group_end());
    expect(out, previous, 0, MOST, "a message");
    REFUSED(spark_ccl_group_end(), "group");
    REFUSED(spark_ccl_send(comm, in, 1, TYPE, size, NULL), "rank");
}

/* Each rank sends to the next one, which receives the message that a probe has found. */
static void probes(void)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size, there = 1;
    size_t count = 1;
    spark_ccl_dtype dtype = SPARK_CCL_INT8;
    SUCCEEDS(spark_ccl_probe(comm, previous, &count, &dtype, &there));
    require(there == 0 && count == 0, "nothing has come");
    SUCCEEDS(spark_ccl_barrier(comm, NULL));
    fill(in, rank, 0, 3);
    SUCCEEDS(spark_ccl_send(comm, in, 3, TYPE, next, NULL));
    while (!there) {
        SUCCEEDS(spark_ccl_probe(comm, previous, &count, &dtype, &there));
    }
    require(count == 3 && dtype == TYPE, "what has come");
    SUCCEEDS(spark_ccl_recv(comm, out, count, dtype, previous, NULL));
    expect(out, previous, 0, count, "a message that was probed");
    REFUSED(spark_ccl_probe(comm, size, &count, &dtype, &there), "no rank");
    REFUSED(spark_ccl_probe(comm, -1, &count, &dtype, &there), "below 0");
    REFUSED(spark_ccl_probe(comm, 0, NULL, &dtype, &there), "null");
}

static void parts(void)
{
    spark_ccl_comm *part = NULL, *none = comm;
    int own = -1, all = -1;
    SUCCEEDS(spark_ccl_comm_split(comm, rank % 2, -rank, &part));
    SUCCEEDS(spark_ccl_comm_rank(part, &own));
    SUCCEEDS(spark_ccl_comm_size(part, &all));
    require(all == (size + 1 - rank % 2) / 2, "the size of a part");
    require(own == all - 1 - rank / 2, "the rank in a part");
    int64_t least = rank;
    SUCCEEDS(spark_ccl_all_reduce(part, &least, &least, 1, TYPE, SPARK_CCL_MIN, NULL));
    require(least == rank % 2, "a minimum in a part");
    SUCCEEDS(spark_ccl_comm_split(comm, -1, 0, &none));
    require(none == NULL, "a rank in no part");
    SUCCEEDS(spark_ccl_comm_finalize(part));
    SUCCEEDS(spark_ccl_comm_destroy(part));
}

static void refusals(void)
{
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.struct_size = 4;
    REFUSED(spark_ccl_barrier(comm, &options), "struct_size");
    /* A size that is half a pointer. */
    options.struct_size = offsetof(spark_ccl_options, name) + 4;
    REFUSED(spark_ccl_barrier(comm, &options), "struct_size");
    struct {
        spark_ccl_options known;
        char more[32];
    } newer = {SPARK_CCL_OPTIONS_INIT, {0}};
    newer.known.struct_size = sizeof newer;
    newer.known.name = "the newer one's";
    SUCCEEDS(spark_ccl_barrier(comm, &newer.known));
    newer.more[31] = 1;
    REFUSED(spark_ccl_barrier(comm, &newer.known), "newer version");
    REFUSED(spark_ccl_all_gather(comm, in, out, SIZE_MAX / 2, TYPE, NULL), "count");
    REFUSED(spark_ccl_all_gather(comm, (char *)in + 1, out, 1, TYPE, NULL), "aligned");
    REFUSED(spark_ccl_broadcast(comm, in, out, 1, TYPE, size, NULL), "root");
    REFUSED(spark_ccl_broadcast(comm, in, out, 1, TYPE, -1, NULL), "root");
    REFUSED(spark_ccl_comm_split(comm, 0, 0, NULL), "null");
    REFUSED(spark_ccl_comm_set_timeout(comm, 0), "a timeout of 0");
    SUCCEEDS(spark_ccl_comm_set_timeout(comm, 30000));
    SUCCEEDS(spark_ccl_comm_check(comm));
    require(spark_ccl_version() == SPARK_CCL_VERSION, "the version");
}

static int lines;
static void log_line(const char *line, void *data)
{
    lines += *(int *)data + (line[0] == '\0');
}

int main(void)
{
    static int one = 1;
    SUCCEEDS(spark_ccl_set_log(log_line, &one, "info"));
    REFUSED(spark_ccl_set_log(log_line, &one, NULL), "already");
    join();
    static const size_t counts[] = {0, 1, 7, 1000, MOST};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int root = 0; root < size; root++) {
            reductions(counts[i], root);
            moves(counts[i], root);
        }
    }
    factors();
    blocks();
    types();
    operations();
    messages();
    probes();
    parts();
    refusals();
    require(lines > 0, "a line of the log");
    REFUSED(spark_ccl_comm_set_timeout(NULL, 1), "null");
    return leave();
}
