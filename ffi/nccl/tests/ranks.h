/*
 * What programs of ranks have in common: their checks, and how they meet.
 */
#ifndef RANKS_H
#define RANKS_H

#include "abi.h"

#include <time.h>

static ncclComm_t comm;
static int rank = -1, size = -1;

static inline void require(int condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "rank %d: %s: %s\n", rank, what, ncclGetLastError(NULL));
        exit(1);
    }
}

#define SUCCEEDS(call) require((call) == ncclSuccess, #call)
/* The refusal before must leave another message than the call's own. */
#define FAILS(call, code, word)                                                                    \
    do {                                                                                           \
        ncclSignal(0, 0, 0, 0, NULL, NULL);                                                        \
        require((call) == (code) && strstr(ncclGetLastError(NULL), word) != NULL, #call);          \
    } while (0)

static inline void pause_briefly(void)
{
    struct timespec moment = {0, 1000000};
    nanosleep(&moment, NULL);
}

/* The unique id, which rank 0 writes to a file. */
static inline ncclUniqueId meet(const char *path)
{
    ncclUniqueId id;
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    if (rank == 0) {
        SUCCEEDS(ncclGetUniqueId(&id));
        FILE *file = fopen(temporary, "wb");
        require(file && fwrite(&id, sizeof id, 1, file) == 1, "writing the id");
        require(fclose(file) == 0, "closing the file of the id");
        require(rename(temporary, path) == 0, "the id's file");
        return id;
    }
    FILE *file;
    while (!(file = fopen(path, "rb"))) {
        pause_briefly();
    }
    require(fread(&id, sizeof id, 1, file) == 1, "reading the id");
    fclose(file);
    return id;
}

/* Waits until a communicator is made. */
static inline void await(ncclComm_t other)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        pause_briefly();
        SUCCEEDS(ncclCommGetAsyncError(other, &state));
    }
    require(state == ncclSuccess, "meeting");
}

/* The sum of a rank's own number in another communicator. */
static inline void expect_sum(ncclComm_t other, int32_t own, int32_t expected, const char *what)
{
    int32_t sum = -1;
    SUCCEEDS(ncclAllReduce(&own, &sum, 1, ncclInt32, ncclSum, other, NULL));
    require(sum == expected, what);
}

#endif
