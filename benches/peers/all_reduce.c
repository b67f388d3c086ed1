/* Times MPI_Allreduce of floats, in the way that spark-perf times spark-ccl's.
 *
 *   all_reduce BYTES ITERATIONS CALLS
 *
 * The same buffers are used in all calls, so they are as hot as their size allows. ITERATIONS times
 * CALLS calls are timed at a stretch; the time is that of the slowest rank. Rank 0 prints the
 * microseconds of a call out of place and in place, and the number of wrong elements. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, size;

static void fail(const char *what)
{
    fprintf(stderr, "all_reduce: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static long number(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*end != '\0' || value <= 0)
        fail("sizes and counts are whole numbers above 0");
    return value;
}

static void fill(float *buffer, long count, float value)
{
    for (long i = 0; i < count; i++)
        buffer[i] = value;
}

static void call(void *send, float *recv, long count)
{
    if (MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS)
        fail("MPI_Allreduce failed");
}

/* Microseconds of a call, of the slowest rank. */
static double measure(void *send, float *recv, long count, long calls)
{
    call(send, recv, count);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long i = 0; i < calls; i++)
        call(send, recv, count);
    double own = (MPI_Wtime() - start) / (double)calls * 1e6, slowest = 0;
    MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

/* Elements, over all ranks, that are not the sum of 1, 2, ... size. */
static long check(float *send, float *recv, long count)
{
    fill(send, count, (float)(rank + 1));
    call(send, recv, count);
    float expected = (float)(size * (size + 1) / 2);
    long own = 0, all = 0;
    for (long i = 0; i < count; i++)
        own += recv[i] != expected;
    MPI_Allreduce(&own, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 4)
        fail("expected BYTES ITERATIONS CALLS");
    long bytes = number(argv[1]), calls = number(argv[2]) * number(argv[3]);
    long count = bytes / (long)sizeof(float);
    float *send = malloc((size_t)bytes), *recv = malloc((size_t)bytes);
    if (send == NULL || recv == NULL)
        fail("no memory");

    /* Ones, so that all pages are there and repeated sums meet no slow (subnormal) numbers. */
    fill(send, count, 1);
    fill(recv, count, 1);
    double out_of_place = measure(send, recv, count, calls);
    fill(recv, count, 1);
    double in_place = measure(MPI_IN_PLACE, recv, count, calls);
    long wrong = check(send, recv, count);
    if (rank == 0)
        printf("result %.3f %.3f %ld\n", out_of_place, in_place, wrong);

    free(send);
    free(recv);
    MPI_Finalize();
    return 0;
}
