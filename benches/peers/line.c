/* How far apart cores are: the round trip of a cache line, in microseconds.
 *
 *   line [CORE...]
 *
 * Prints a line for each core after the first: its number, and the median of the round trips
 * between it and the first. Without cores, those of the first two that this program may use; `all`
 * are all.
 *
 * Each of the two cores writes a line of its own, and waits for the other's. */

#include "pin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

/* Round trips that are timed at a stretch, and microseconds for all of them. */
#define TRIPS 100
#define LONG_ENOUGH 5000
#define FEWEST_STRETCHES 20
#define MOST_STRETCHES 4096
#define LAST (-1)
/* Seconds until a core that answers no more ends the program. */
#define PATIENCE 20

static struct {
    /* Two lines each: processors fetch them in pairs. */
    _Alignas(128) atomic_long ours;
    _Alignas(128) atomic_long theirs;
} lines;

static void *answer(void *unused)
{
    long seen = 0, now;
    (void)unused;
    do {
        while ((now = atomic_load_explicit(&lines.ours, memory_order_acquire)) == seen)
            ;
        atomic_store_explicit(&lines.theirs, now, memory_order_release);
        seen = now;
    } while (now != LAST);
    return NULL;
}

static void trip(long number)
{
    atomic_store_explicit(&lines.ours, number, memory_order_release);
    while (atomic_load_explicit(&lines.theirs, memory_order_acquire) != number)
        ;
}

static int ascending(const void *a, const void *b)
{
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

/* Stretches that are disturbed do not count for much in a median. */
static double round_trip(int first, int second)
{
    static double stretches[MOST_STRETCHES];
    long number = 0, taken = 0;
    pthread_t thread;
    lines.ours = lines.theirs = 0;
    /* The thread starts on the core of this one, and would not if this one already waited there. */
    pin_to(second);
    if (pthread_create(&thread, NULL, answer, NULL) != 0)
        fail("cannot start a thread");
    pin_to(first);
    trip(++number);
    double start = microseconds(CLOCK_MONOTONIC), before = start, now = start;
    while (taken < FEWEST_STRETCHES || (taken < MOST_STRETCHES && now - start < LONG_ENOUGH)) {
        for (int i = 0; i < TRIPS; i++)
            trip(++number);
        now = microseconds(CLOCK_MONOTONIC);
        stretches[taken++] = (now - before) / TRIPS;
        before = now;
    }
    trip(LAST);
    pthread_join(thread, NULL);
    qsort(stretches, (size_t)taken, sizeof *stretches, ascending);
    return stretches[taken / 2];
}

int main(int argc, char **argv)
{
    static int cores[CPU_SETSIZE];
    alarm(PATIENCE);
    int count = 0, all = argc == 2 && strcmp(argv[1], "all") == 0;
    if (argc == 1 || all) {
        int wanted = all ? allowed_cores() : 2;
        while (count < wanted) {
            cores[count] = allowed_core(count);
            count++;
        }
    } else {
        for (int i = 1; i < argc && count < CPU_SETSIZE; i++)
            cores[count++] = (int)number(argv[i]);
    }
    for (int i = 1; i < count; i++)
        printf("%d %.3f\n", cores[i], round_trip(cores[0], cores[i]));
    return 0;
}
