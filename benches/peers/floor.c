/* What memory allows: two threads, each on a core of its own, do what no all-reduce of two ranks
 * can do without.
 *
 *   floor NAME BYTES CALLS ROOM
 *
 * sum: each adds one half of both ranks' vectors, and writes the sum into both results.
 * sum-streaming: the same with stores that pass the caches by, where there are any.
 * copy: each copies a vector of its own; there is no form in place.
 *
 * Calls move through buffers of ROOM bytes, as in collective.c. */

#include "pin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#define RANKS 2
/* Halves are split between cache lines. */
#define LINE 16

typedef void add(const float *a, const float *b, float *c, float *d, long count);

static const char *name;
static long count, calls, turns;
static struct parts send[RANKS], recv[RANKS];
static struct times out_of_place[RANKS], in_place[RANKS];
static long wrong[RANKS];
static atomic_long arrived;

static int is_copy(void)
{
    return strcmp(name, "copy") == 0;
}

/* All threads have come here as often as this one has. */
static void meet(long *met)
{
    atomic_fetch_add(&arrived, 1);
    *met += RANKS;
    while (atomic_load(&arrived) < *met)
        ;
}

/* Both results may be where the inputs are. */
static void add_plain(const float *a, const float *b, float *c, float *d, long len)
{
#pragma GCC ivdep
    for (long i = 0; i < len; i++)
        c[i] = d[i] = a[i] + b[i];
}

static void add_streaming(const float *a, const float *b, float *c, float *d, long len)
{
    long i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= len; i += 16) {
        __m512 sum = _mm512_add_ps(_mm512_load_ps(a + i), _mm512_load_ps(b + i));
        _mm512_stream_ps(c + i, sum);
        _mm512_stream_ps(d + i, sum);
    }
    _mm_sfence();
#elif defined(__AVX__)
    for (; i + 8 <= len; i += 8) {
        __m256 sum = _mm256_add_ps(_mm256_load_ps(a + i), _mm256_load_ps(b + i));
        _mm256_stream_ps(c + i, sum);
        _mm256_stream_ps(d + i, sum);
    }
    _mm_sfence();
#endif
    add_plain(a + i, b + i, c + i, d + i, len - i);
}

/* This thread's half of an all-reduce; inputs and results are where `from` and `to` say. */
static void sum(add *add, int rank, const struct parts *from, const struct parts *to, long turn,
                long *met)
{
    long middle = count / 2 / LINE * LINE;
    long start = rank == 0 ? 0 : middle, end = rank == 0 ? middle : count;
    meet(met);
    add(part(from[0], turn) + start, part(from[1], turn) + start, part(to[0], turn) + start,
        part(to[1], turn) + start, end - start);
    meet(met);
}

static void call(int rank, const struct parts *from, long turn, long *met)
{
    if (is_copy())
        memcpy(part(recv[rank], turn), part(send[rank], turn), (size_t)count * sizeof(float));
    else
        sum(strcmp(name, "sum") == 0 ? add_plain : add_streaming, rank, from, recv, turn, met);
}

static struct times measure(int rank, const struct parts *from, long *met)
{
    if (from == send)
        touch(send[rank]);
    touch(recv[rank]);
    call(rank, from, turns - 1, met);
    meet(met);
    struct times start = now(CLOCK_THREAD_CPUTIME_ID);
    for (long i = 0; i < calls; i++)
        call(rank, from, i, met);
    return per_call(start, now(CLOCK_THREAD_CPUTIME_ID), calls);
}

static struct parts whole_pages(long room)
{
    struct parts parts = allocate(count, turns_in(room, count));
    parts.memory = (float *)(((uintptr_t)parts.memory + PAGE - 1) / PAGE * PAGE);
    return parts;
}

/* Of the latest call's result, out of place: ones were added, or copied. */
static long check(int rank)
{
    const float *result = part(recv[rank], calls - 1);
    float expected = is_copy() ? 1 : RANKS;
    long wrong = 0;
    for (long i = 0; i < count; i++)
        wrong += result[i] != expected;
    return wrong;
}

static void *run(void *argument)
{
    int rank = (int)(intptr_t)argument;
    long met = 0;
    pin(rank);
    meet(&met);
    out_of_place[rank] = measure(rank, send, &met);
    meet(&met);
    wrong[rank] = check(rank);
    meet(&met);
    in_place[rank] = is_copy() ? out_of_place[rank] : measure(rank, recv, &met);
    return NULL;
}

static struct times slowest(const struct times *of)
{
    return of[0].wall > of[1].wall ? of[0] : of[1];
}

int main(int argc, char **argv)
{
    if (argc != 5)
        fail("expected NAME BYTES CALLS ROOM");
    name = argv[1];
    count = number(argv[2]) / (long)sizeof(float);
    calls = number(argv[3]);
    long room = number(argv[4]);
    turns = turns_in(room, count);
    for (int rank = 0; rank < RANKS; rank++) {
        send[rank] = whole_pages(room);
        recv[rank] = whole_pages(room);
    }
    pthread_t threads[RANKS];
    for (int rank = 0; rank < RANKS; rank++)
        if (pthread_create(&threads[rank], NULL, run, (void *)(intptr_t)rank) != 0)
            fail("cannot start a thread");
    for (int rank = 0; rank < RANKS; rank++)
        pthread_join(threads[rank], NULL);
    print_result(slowest(out_of_place), slowest(in_place), wrong[0] + wrong[1]);
    return 0;
}
