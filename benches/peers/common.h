/* What all programs here share: clocks, arguments, buffers, and the line that is the result. */

#ifndef COMMON_H
#define COMMON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Successive calls start on pages of their own. */
#define PAGE 4096

/* Microseconds by the clock, and of the processor, in the program and in the system. */
struct times {
    double wall, cpu;
};

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static inline double microseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* `cpu` is CLOCK_PROCESS_CPUTIME_ID, or CLOCK_THREAD_CPUTIME_ID where ranks are threads. */
static inline struct times now(clockid_t cpu)
{
    return (struct times){microseconds(CLOCK_MONOTONIC), microseconds(cpu)};
}

static inline struct times per_call(struct times start, struct times end, long calls)
{
    return (struct times){(end.wall - start.wall) / (double)calls,
                          (end.cpu - start.cpu) / (double)calls};
}

static inline long number(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*end != '\0' || value < 0)
        fail("sizes and counts are whole numbers");
    return value;
}

/* A buffer: successive calls take its parts, of `stride` floats, in turn. */
struct parts {
    float *memory;
    long stride, turns;
};

static inline long pages(long floats)
{
    return (floats * (long)sizeof(float) + PAGE - 1) / PAGE;
}

/* How many parts of `floats` floats fit into `room` bytes; at least one. */
static inline long turns_in(long room, long floats)
{
    long turns = floats > 0 ? room / (pages(floats) * PAGE) : 1;
    return turns > 0 ? turns : 1;
}

static inline struct parts allocate(long floats, long turns)
{
    struct parts parts = {NULL, pages(floats) * PAGE / (long)sizeof(float), turns};
    /* One page more, for programs that want whole pages. */
    parts.memory = malloc((size_t)((pages(floats) * turns + 1) * PAGE));
    if (parts.memory == NULL)
        fail("no memory");
    return parts;
}

static inline float *part(struct parts parts, long turn)
{
    return parts.memory + turn % parts.turns * parts.stride;
}

/* Writes ones everywhere: all pages are there, repeated sums meet no slow (subnormal) numbers, and
 * what was written first has left the caches if the parts together are larger. */
static inline void touch(struct parts parts)
{
    for (long i = 0; i < parts.turns * parts.stride; i++)
        parts.memory[i] = 1;
}

static inline void print_result(struct times out_of_place, struct times in_place, long wrong)
{
    printf("result %.3f %.3f %.3f %.3f %ld\n", out_of_place.wall, out_of_place.cpu, in_place.wall,
           in_place.cpu, wrong);
}

#endif
