/*
 * How communicators end otherwise than in order.
 *
 *   ends FILE RANK SIZE       the last rank dies, and the others go on without it
 */
#include "ranks.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>

static void shrink(int lost)
{
    int32_t own = rank, sum = 0;
    int number;
    ncclComm_t rest = NULL;
    ncclResult_t state;
    char name[64];
    snprintf(name, sizeof name, "communicator \"blue\": rank %d", lost);
    FAILS(ncclAllReduce(&own, &sum, 1, ncclInt32, ncclSum, comm, NULL), ncclRemoteError, name);
    SUCCEEDS(ncclCommGetAsyncError(comm, &state));
    require(state == ncclRemoteError, "the state after a death");
    SUCCEEDS(ncclCommShrink(comm, &lost, 1, &rest, NULL, 0));
    SUCCEEDS(ncclCommCount(rest, &number));
    require(number == size - 1, "the size without the one that died");
    expect_sum(rest, rank, lost * (lost - 1) / 2, "the sum of those that are left");
    SUCCEEDS(ncclCommDestroy(comm));
    SUCCEEDS(ncclCommFinalize(rest));
    SUCCEEDS(ncclCommDestroy(rest));
}

/* Waits for a message of a rank that never sends it. */
static void *waits(void *of)
{
    int32_t word = 0;
    ncclResult_t ended = ncclRecv(&word, 1, ncclInt32, 1, (ncclComm_t)of, NULL);
    require(ended != ncclSuccess, "a call of a communicator that was aborted");
    return NULL;
}

/* An abort ends a call of another thread, and releases the other rank, which is in no call. */
static void abort_calls(void)
{
    ncclComm_t all[2];
    ncclResult_t state = ncclSuccess;
    pthread_t thread;
    SUCCEEDS(ncclCommInitAll(all, 2, NULL));
    require(pthread_create(&thread, NULL, waits, all[0]) == 0, "pthread_create");
    for (int i = 0; i < 50; i++) {
        pause_briefly();
    }
    SUCCEEDS(ncclCommAbort(all[0]));
    require(pthread_join(thread, NULL) == 0, "pthread_join");
    FAILS(ncclAllReduce(&state, &state, 1, ncclInt32, ncclSum, all[1], NULL), ncclRemoteError,
          "rank 0");
    SUCCEEDS(ncclCommAbort(all[1]));
    SUCCEEDS(ncclCommInitAll(all, 2, NULL));
    SUCCEEDS(ncclCommAbort(all[0]));
    SUCCEEDS(ncclCommGetAsyncError(all[1], &state));
    require(state == ncclSuccess, "the state of a rank that needs no other");
    /* It can also end in order: that waits for no other. */
    SUCCEEDS(ncclCommFinalize(all[1]));
    SUCCEEDS(ncclCommDestroy(all[1]));
}

/* A revoked communicator ends its calls on all ranks, and its ranks go on in another one. */
static void revoke(void)
{
    ncclComm_t all[2], rest[2];
    pthread_t thread;
    SUCCEEDS(ncclCommInitAll(all, 2, NULL));
    FAILS(ncclCommRevoke(all[0], 1), ncclInvalidArgument, "revokeFlags");
    require(pthread_create(&thread, NULL, waits, all[0]) == 0, "pthread_create");
    for (int i = 0; i < 50; i++) {
        pause_briefly();
    }
    SUCCEEDS(ncclCommRevoke(all[1], 0));
    require(pthread_join(thread, NULL) == 0, "pthread_join");
    int32_t word = 1;
    for (int i = 0; i < 2; i++) {
        FAILS(ncclAllReduce(&word, &word, 1, ncclInt32, ncclSum, all[i], NULL), ncclRemoteError,
              "ncclCommRevoke");
    }
    SUCCEEDS(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        SUCCEEDS(ncclCommShrink(all[i], NULL, 0, &rest[i], NULL, 0));
    }
    SUCCEEDS(ncclGroupEnd());
    int32_t own[2] = {1, 2}, sums[2] = {0};
    SUCCEEDS(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        SUCCEEDS(ncclAllReduce(&own[i], &sums[i], 1, ncclInt32, ncclSum, rest[i], NULL));
    }
    SUCCEEDS(ncclGroupEnd());
    require(sums[0] == 3 && sums[1] == 3, "a sum after a revocation");
    for (int i = 0; i < 2; i++) {
        SUCCEEDS(ncclCommDestroy(all[i]));
        SUCCEEDS(ncclCommDestroy(rest[i]));
    }
}

static int count(const char *path)
{
    DIR *folder = opendir(path);
    require(folder != NULL, path);
    int entries = 0;
    while (readdir(folder) != NULL) {
        entries++;
    }
    closedir(folder);
    return entries;
}

/* Without any other rank, the handle and the thread that waits end all the same. */
static void abort_a_meeting(void)
{
    ncclUniqueId id;
    ncclComm_t alone = NULL;
    ncclResult_t state;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int number;
    config.blocking = 0;
    SUCCEEDS(ncclGetUniqueId(&id));
    int threads = count("/proc/self/task");
    require(ncclCommInitRankConfig(&alone, 2, id, 0, &config) == ncclInProgress, "blocking 0");
    SUCCEEDS(ncclCommGetAsyncError(alone, &state));
    require(state == ncclInProgress, "the state of a meeting");
    FAILS(ncclCommCount(alone, &number), ncclInvalidArgument, "not ready");
    SUCCEEDS(ncclCommAbort(alone));
    FAILS(ncclCommAbort(alone), ncclInvalidArgument, "no such communicator");
    for (int i = 0; i < 1000 && count("/proc/self/task") > threads; i++) {
        pause_briefly();
    }
    require(count("/proc/self/task") <= threads, "the end of a meeting that was aborted");
}

/* Splits, and the end of a nonblocking communicator, go on in the background. */
static void in_the_background(void)
{
    ncclUniqueId id;
    ncclComm_t all[2] = {NULL}, parts[2] = {NULL}, late = NULL;
    ncclResult_t state;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int number;
    config.blocking = 0;
    SUCCEEDS(ncclGetUniqueId(&id));
    for (int i = 0; i < 2; i++) {
        require(ncclCommInitRankConfig(&all[i], 2, id, i, &config) == ncclInProgress, "an init");
    }
    await(all[0]);
    await(all[1]);
    require(ncclCommSplit(all[0], 0, 0, &parts[0], NULL) == ncclInProgress, "a split");
    SUCCEEDS(ncclCommGetAsyncError(all[0], &state));
    require(state == ncclInProgress, "the state of a communicator that is split");
    FAILS(ncclBroadcast(&number, &number, 1, ncclInt32, 0, all[0], NULL), ncclInvalidArgument,
          "goes on");
    /* A group does not change that: it is not the one that splits. */
    SUCCEEDS(ncclGroupStart());
    FAILS(ncclBroadcast(&number, &number, 1, ncclInt32, 0, all[0], NULL), ncclInvalidArgument,
          "goes on");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "goes on");
    require(ncclCommSplit(all[1], 0, 0, &parts[1], NULL) == ncclInProgress, "a split");
    await(all[0]);
    await(all[1]);
    await(parts[0]);
    await(parts[1]);
    SUCCEEDS(ncclCommCount(parts[1], &number));
    require(number == 2, "the size of a part");
    for (int i = 0; i < 2; i++) {
        require(ncclCommFinalize(parts[i]) == ncclInProgress, "a finalize");
    }
    for (int i = 0; i < 2; i++) {
        await(parts[i]);
        SUCCEEDS(ncclCommDestroy(parts[i]));
        FAILS(ncclCommDestroy(parts[i]), ncclInvalidArgument, "no such communicator");
    }
    /* A split that no other rank makes ends by an abort, and this rank leaves the others. */
    require(ncclCommSplit(all[0], 0, 0, &late, NULL) == ncclInProgress, "a split");
    SUCCEEDS(ncclCommAbort(late));
    for (state = ncclInProgress; state == ncclInProgress; pause_briefly()) {
        SUCCEEDS(ncclCommGetAsyncError(all[0], &state));
    }
    require(state == ncclRemoteError, "the state of a rank that has left");
    SUCCEEDS(ncclCommGetAsyncError(all[1], &state));
    require(state == ncclSuccess, "the state of a rank that needs no other");
    for (int i = 0; i < 2; i++) {
        SUCCEEDS(ncclCommAbort(all[i]));
    }
}

/* A group of which a call could not begin destroys nothing. */
static void destroy_in_a_group(void)
{
    ncclComm_t alone;
    int number;
    SUCCEEDS(ncclCommInitAll(&alone, 1, NULL));
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclCommDestroy(alone));
    FAILS(ncclCommCount(alone, &number), ncclInvalidArgument, "has been destroyed");
    FAILS(ncclAllReduce(&number, &number, 1, ncclInt32, ncclSum, NULL, NULL), ncclInvalidArgument,
          "comm");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "comm");
    SUCCEEDS(ncclCommCount(alone, &number));
    SUCCEEDS(ncclCommDestroy(alone));
    FAILS(ncclCommDestroy(alone), ncclInvalidArgument, "no such communicator");
}

/* Nothing is left of communicators that have ended. */
static void again_and_again(void)
{
    int descriptors = 0;
    for (int i = 0; i < 60; i++) {
        ncclComm_t all[2];
        int32_t own[2] = {1, 2}, sum[2] = {0};
        SUCCEEDS(ncclCommInitAll(all, 2, NULL));
        SUCCEEDS(ncclGroupStart());
        for (int j = 0; j < 2; j++) {
            SUCCEEDS(ncclAllReduce(&own[j], &sum[j], 1, ncclInt32, ncclSum, all[j], NULL));
        }
        SUCCEEDS(ncclGroupEnd());
        require(sum[0] == 3 && sum[1] == 3, "a sum");
        for (int j = 0; j < 2; j++) {
            SUCCEEDS(ncclCommDestroy(all[j]));
        }
        if (i == 20) {
            descriptors = count("/proc/self/fd");
        }
    }
    for (int i = 0; i < 20000 && count("/proc/self/fd") > descriptors; i++) {
        pause_briefly();
    }
    require(count("/proc/self/fd") <= descriptors, "descriptors of communicators that have ended");
}

int main(int argc, char **argv)
{
    require(argc == 4, "usage: ends FILE RANK SIZE");
    rank = atoi(argv[2]);
    size = atoi(argv[3]);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = "blue";
    SUCCEEDS(ncclCommInitRankConfig(&comm, size, meet(argv[1]), rank, &config));
    expect_sum(comm, rank, size * (size - 1) / 2, "a sum");
    /* No rank may die while others are in a call: the call would fail for its death. */
    int32_t done = 1;
    if (rank < size - 1) {
        SUCCEEDS(ncclSend(&done, 1, ncclInt32, size - 1, comm, NULL));
    } else {
        for (int other = 0; other < rank; other++) {
            SUCCEEDS(ncclRecv(&done, 1, ncclInt32, other, comm, NULL));
        }
        raise(SIGKILL);
    }
    shrink(size - 1);
    again_and_again();
    destroy_in_a_group();
    in_the_background();
    abort_calls();
    revoke();
    abort_a_meeting();
    printf("rank %d of %d: right\n", rank, size);
    return 0;
}
