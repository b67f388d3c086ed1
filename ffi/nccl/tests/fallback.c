/*
 * A library in NCCL's place, as far as the tests send calls there. It knows its own communicators,
 * and the ranks of the one that it makes for ours, and writes what it is asked for.
 */
#include "abi.h"

#include <stdatomic.h>
#include <threads.h>

#if defined HANGS || defined STAYS || defined SLOW
#include <unistd.h>
#endif

#ifndef VERSION
#define VERSION 22809
#endif

/* What is not null, and none of ours. Those of several ranks are ready when they were asked
 * often. */
static int communicator = 7;
static int asked;
/* The result of the end of a group. */
static ncclResult_t ended = ncclSuccess;

#define EXPORTED __attribute__((visibility("default")))

/* How many communicators have ended. */
EXPORTED atomic_int ends;

/* 1 while a rank waits here: without end, or, with a window of 4 bytes, until its communicator is
 * aborted. A rank that is HANGS does not wait, but fails. */
EXPORTED atomic_int hanging;

static void tell(const char *what) { fprintf(stderr, "fallback: %s\n", what); }

EXPORTED ncclResult_t ncclGetVersion(int *version)
{
    *version = VERSION;
    return ncclSuccess;
}

EXPORTED const char *ncclGetLastError(ncclComm_t comm)
{
    return comm == NULL ? "the last error of the fallback" : "the error of its communicator";
}

EXPORTED ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memcpy(id, "the id of the fallback", 23);
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank)
{
    char what[200];
    snprintf(what, sizeof what, "rank %d of %d with %s", rank, size, id.internal);
    tell(what);
#ifdef HANGS
    if (size > 1) {
        hanging = 1;
        while (rank != HANGS)
            pause();
        return ncclSystemError;
    }
#endif
    *comm = (ncclComm_t)(void *)&communicator;
    if (size == 1)
        return ncclSuccess;
    asked = 0;
    communicator = 0;
    return ncclInProgress;
}

EXPORTED ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    *state = ++asked < 3 ? ncclInProgress : ncclSuccess;
    if (*state == ncclSuccess)
        *(int *)(void *)comm = 7;
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    tell(*(int *)(void *)comm == 7 ? "destroyed" : "destroyed another one");
    ends++;
#ifdef STAYS
    for (;;)
        pause();
#endif
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommAbort(ncclComm_t comm)
{
#ifdef SLOW
    usleep(100000);
#endif
    tell(*(int *)(void *)comm == 7 ? "aborted" : "aborted another one");
    ends++;
#ifdef STAYS
    for (;;)
        pause();
#endif
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    *count = *(int *)(void *)comm == 7 ? 77 : 78;
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                                    int root, ncclComm_t comm, cudaStream_t stream)
{
    (void)send, (void)recv, (void)type, (void)root, (void)stream;
    ended = count == 2 ? ncclInProgress : ncclSuccess;
    tell(*(int *)(void *)comm == 7 ? "broadcast" : "broadcast of another one");
    return ncclInvalidUsage;
}

/* Called by its name, as in NCCL: that may be another library's function. */
EXPORTED ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root,
                                ncclComm_t comm, cudaStream_t stream)
{
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

EXPORTED ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t bytes,
                                             ncclWindow_t *window, int flags)
{
    (void)flags;
    if (bytes == 4) {
        hanging = 1;
        while (ends == 0) {
            thrd_yield();
        }
        return ncclInternalError;
    }
    *window = *(int *)(void *)comm == 7 ? buffer : NULL;
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclSignal(int peer, int index, int context, unsigned int flags,
                                 ncclComm_t comm, cudaStream_t stream)
{
    (void)index, (void)context, (void)flags, (void)stream;
    return peer == 1 && *(int *)(void *)comm == 7 ? ncclSuccess : (ncclResult_t)99;
}

EXPORTED ncclResult_t ncclGroupStart(void)
{
    tell("a group begins");
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclGroupEnd(void)
{
    tell("a group ends");
    return ended;
}
