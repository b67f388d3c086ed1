/*
 * What callers do wrong, each of which is an error with a text: no crash, no wait without end, and
 * no success. All ranks are in this process.
 */
#include "ranks.h"

#include <sys/wait.h>
#include <unistd.h>

static ncclComm_t all[2];

static ncclUniqueId new_id(void)
{
    ncclUniqueId id;
    SUCCEEDS(ncclGetUniqueId(&id));
    return id;
}

/* An id of NCCL's has a number and an address, and no mark of ours. */
static void ids(void)
{
    ncclUniqueId id = {{0x4e, 0x43, 0x43, 0x4c, 1, 2, 3, 4, 2, 0, 0x1f, 0x40, 127, 0, 0, 1}};
    FAILS(ncclCommInitRank(&comm, 2, id, 0), ncclInvalidArgument, "unique id");
    require(comm == NULL, "a communicator");
    FAILS(ncclCommInitRank(&comm, 0, new_id(), 0), ncclInvalidArgument, "nranks 0");
    FAILS(ncclCommInitRank(&comm, -1, new_id(), 0), ncclInvalidArgument, "nranks");
    FAILS(ncclCommInitRank(&comm, 2, new_id(), 2), ncclInvalidArgument, "rank is 2");
    FAILS(ncclCommInitAll(all, 0, NULL), ncclInvalidArgument, "ndev is 0");
    FAILS(ncclCommInitRankScalable(&comm, 2, 0, 0, &id, NULL), ncclInvalidArgument, "nId is 0");
}

/* Whether one of two ranks that cannot meet says why; the other may still wait for another one. */
static void meet_wrong(int ranks[2], int sizes[2], const char *words)
{
    ncclUniqueId id = new_id();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int has_said = 0;
    config.blocking = 0;
    for (int i = 0; i < 2; i++) {
        ncclResult_t begun = ncclCommInitRankConfig(&all[i], sizes[i], id, ranks[i], &config);
        require(begun == ncclInProgress, "the beginning of a meeting");
    }
    for (int i = 0; !has_said; i = 1 - i) {
        ncclResult_t state;
        SUCCEEDS(ncclCommGetAsyncError(all[i], &state));
        require(state != ncclSuccess, "ranks that cannot meet");
        has_said = state != ncclInProgress;
        require(!has_said || strstr(ncclGetLastError(NULL), words) != NULL, words);
        pause_briefly();
    }
    SUCCEEDS(ncclCommAbort(all[0]));
    SUCCEEDS(ncclCommAbort(all[1]));
}

/* A rank that never comes, as it is on NVIDIA's library: an id of ours means nothing there. */
static void a_rank_on_another_library(void)
{
    require(setenv("SPARK_CCL_INIT_TIMEOUT", "1", 1) == 0, "setenv");
    FAILS(ncclCommInitRank(&comm, 2, new_id(), 0), ncclTimeout, "rank 1");
    require(unsetenv("SPARK_CCL_INIT_TIMEOUT") == 0, "unsetenv");
}

static void configurations(void)
{
    ncclUniqueId id = new_id();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
#define CALL ncclCommInitRankConfig(&comm, 1, id, 0, &config)
    config.size = 0;
    FAILS(CALL, ncclInvalidArgument, "size of the ncclConfig_t is 0");
    config.size = 1 << 20;
    FAILS(CALL, ncclInvalidArgument, "size of the ncclConfig_t is 1048576");
    config.size = sizeof config;
    config.magic = 0xcafebeee;
    FAILS(CALL, ncclInvalidArgument, "magic");
    config.magic = 0xcafebeef;
    config.blocking = 2;
    FAILS(CALL, ncclInvalidArgument, "blocking");
    config.blocking = 1;
    config.netName = "carrier pigeon";
    FAILS(CALL, ncclInvalidArgument, "carrier pigeon");
    config.netName = NULL;
    /* Members of a later version follow those that are known. */
    struct {
        ncclConfig_t known;
        char later[1000];
    } future;
    memset(&future, 0x7f, sizeof future);
    future.known = config;
    future.known.size = sizeof future;
    future.known.version = 99999;
    SUCCEEDS(ncclCommInitRankConfig(&comm, 1, id, 0, &future.known));
    SUCCEEDS(ncclCommDestroy(comm));
#undef CALL
}

/* Both ranks make a call in one group, and learn how the calls differ. */
#define DIFFER(first, second, word, other)                                                         \
    do {                                                                                           \
        SUCCEEDS(ncclCommInitAll(all, 2, NULL));                                                   \
        SUCCEEDS(ncclGroupStart());                                                                \
        SUCCEEDS(first);                                                                           \
        SUCCEEDS(second);                                                                          \
        FAILS(ncclGroupEnd(), ncclRemoteError, word);                                              \
        require(strstr(ncclGetLastError(NULL), other) != NULL, other);                             \
        SUCCEEDS(ncclCommAbort(all[0]));                                                           \
        SUCCEEDS(ncclCommAbort(all[1]));                                                           \
    } while (0)

static void mismatches(void)
{
    int32_t own[2] = {1, 2}, sums[8];
    DIFFER(ncclAllReduce(&own[0], &sums[0], 1, ncclInt32, ncclSum, all[0], NULL),
           ncclAllReduce(own, &sums[2], 2, ncclInt32, ncclSum, all[1], NULL), "count 1", "count 2");
    DIFFER(ncclAllReduce(&own[0], &sums[0], 1, ncclInt32, ncclSum, all[0], NULL),
           ncclAllReduce(&own[1], &sums[1], 1, ncclFloat32, ncclSum, all[1], NULL), "int32",
           "float,");
    DIFFER(ncclAllReduce(&own[0], &sums[0], 1, ncclInt32, ncclSum, all[0], NULL),
           ncclAllReduce(&own[1], &sums[1], 1, ncclInt32, ncclMax, all[1], NULL), "sum", "max");
    DIFFER(ncclAllReduce(&own[0], &sums[0], 1, ncclInt32, ncclSum, all[0], NULL),
           ncclAllGather(&own[1], &sums[2], 1, ncclInt32, all[1], NULL), "all_reduce",
           "all_gather");
    DIFFER(ncclSend(&own[0], 1, ncclInt32, 1, all[0], NULL),
           ncclRecv(&sums[0], 2, ncclInt32, 0, all[1], NULL), "count 1", "count 2");
}

/* Buffers that are missing, misaligned, or overlap otherwise than in place. */
static void buffers(void)
{
    int64_t words[8] = {0};
    char *memory = (char *)words;
#define REDUCE(send, recv, count)                                                                  \
    ncclAllReduce(send, recv, count, ncclInt32, ncclSum, all[0], NULL)
    FAILS(REDUCE(NULL, memory, 1), ncclInvalidArgument, "send");
    FAILS(REDUCE(memory, NULL, 1), ncclInvalidArgument, "receive");
    FAILS(REDUCE(memory + 1, memory + 16, 1), ncclInvalidArgument, "align");
    FAILS(REDUCE(memory, memory + 4, 2), ncclInvalidArgument, "overlap");
    FAILS(REDUCE(memory, memory + 4, (size_t)-1), ncclInvalidArgument, "no memory can hold");
    FAILS(ncclSend(NULL, 1, ncclInt32, 1, all[0], NULL), ncclInvalidArgument, "send");
    FAILS(ncclRecv(memory + 1, 1, ncclInt32, 1, all[0], NULL), ncclInvalidArgument, "align");
    /* Nothing is at any address. */
    char *anywhere = (char *)(uintptr_t)1;
    for (int null = 0; null < 2; null++) {
        char *nothing = null ? NULL : anywhere;
        SUCCEEDS(ncclGroupStart());
        for (int i = 0; i < 2; i++) {
            SUCCEEDS(ncclAllReduce(nothing, nothing, 0, ncclInt32, ncclSum, all[i], NULL));
            SUCCEEDS(ncclSend(nothing, 0, ncclInt32, 1 - i, all[i], NULL));
            SUCCEEDS(ncclRecv(nothing, 0, ncclInt32, 1 - i, all[i], NULL));
        }
        SUCCEEDS(ncclGroupEnd());
    }
}

/* Operations that are none, or another communicator's. */
static void operations(void)
{
    float factor = 2, own = 1;
    ncclRedOp_t op;
    SUCCEEDS(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, all[0]));
#define REDUCE_BY(op, type, comm) ncclAllReduce(&own, &own, 1, type, op, comm, NULL)
    FAILS(REDUCE_BY(op, ncclFloat32, all[1]), ncclInvalidArgument, "ncclRedOp_t");
    FAILS(REDUCE_BY(op, ncclInt32, all[0]), ncclInvalidArgument, "ncclRedOp_t");
    FAILS(REDUCE_BY((ncclRedOp_t)-1, ncclFloat32, all[0]), ncclInvalidArgument, "ncclRedOp_t");
    FAILS(REDUCE_BY(ncclSum, (ncclDataType_t)-1, all[0]), ncclInvalidArgument, "ncclDataType_t");
    FAILS(ncclRedOpDestroy(op, all[1]), ncclInvalidArgument, "ncclRedOp_t");
    FAILS(ncclRedOpDestroy(ncclSum, all[0]), ncclInvalidArgument, "ncclRedOp_t");
    SUCCEEDS(ncclRedOpDestroy(op, all[0]));
}

/* Nothing of a group begins if a communicator of it is gone, before the group or within it. */
static void groups(void)
{
    int32_t word = 1;
#define SUM(of) ncclAllReduce(&word, &word, 1, ncclInt32, ncclSum, all[of], NULL)
    FAILS(ncclGroupEnd(), ncclInvalidUsage, "no group");
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(SUM(0));
    SUCCEEDS(ncclCommAbort(all[0]));
    FAILS(SUM(0), ncclInvalidArgument, "no such communicator");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "no such communicator");
    SUCCEEDS(ncclCommAbort(all[1]));
    SUCCEEDS(ncclCommInitAll(all, 2, NULL));
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(SUM(0));
    SUCCEEDS(ncclCommAbort(all[0]));
    require(ncclGroupEnd() != ncclSuccess, "a call of a communicator that was aborted");
    SUCCEEDS(ncclCommAbort(all[1]));
}

/* A forked child has no communicator and no open group of its parent's, and may make its own. */
static void in_a_child(void)
{
    int32_t word = 1;
    int number, status = -1;
    SUCCEEDS(ncclGroupStart());
    pid_t child = fork();
    require(child >= 0, "fork");
    if (child == 0) {
        alarm(60);
        FAILS(ncclGroupEnd(), ncclInvalidUsage, "no group");
        FAILS(SUM(0), ncclInvalidArgument, "forked");
        FAILS(ncclCommCount(all[0], &number), ncclInvalidArgument, "forked");
        FAILS(ncclCommAbort(all[1]), ncclInvalidArgument, "forked");
        SUCCEEDS(ncclCommInitAll(&comm, 1, NULL));
        expect_sum(comm, 5, 5, "a sum of a child");
        SUCCEEDS(ncclCommDestroy(comm));
        _exit(0);
    }
    require(waitpid(child, &status, 0) == child && status == 0, "a child");
    for (int i = 0; i < 2; i++) {
        SUCCEEDS(ncclBcast(&word, 1, ncclInt32, 0, all[i], NULL));
    }
    SUCCEEDS(ncclGroupEnd());
}

int main(void)
{
    rank = 0, size = 2;
    ids();
    meet_wrong((int[]){0, 0}, (int[]){2, 2}, "rank 0");
    meet_wrong((int[]){0, 1}, (int[]){2, 3}, "3");
    a_rank_on_another_library();
    configurations();
    mismatches();
    SUCCEEDS(ncclCommInitAll(all, 2, NULL));
    buffers();
    operations();
    in_a_child();
    groups();
    puts("right");
    return 0;
}
