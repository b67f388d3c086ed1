/*
 * Every operation of every type on host memory, as many ranks as processes.
 *
 *   host FILE RANK SIZE       rank 0 writes the unique id to the file
 */
#include "values.h"

enum { MOST_RANKS = 4, MI = 1 << 20 };

static char *in, *out;

static void reductions(ncclDataType_t type, ncclRedOp_t op, size_t count, int root)
{
    size_t all = count * (size_t)size, own = count * (size_t)rank, bytes = sizes[type];
    fill(in, type, rank, op, 0, all);
    SUCCEEDS(ncclAllReduce(in, out, count, type, op, comm, NULL));
    expect(out, type, RESULT, op, 0, count, "AllReduce");
    SUCCEEDS(ncclReduce(in, rank == root ? out : NULL, count, type, op, root, comm, NULL));
    if (rank == root) {
        expect(out, type, RESULT, op, 0, count, "Reduce");
    }
    SUCCEEDS(ncclReduceScatter(in, out, count, type, op, comm, NULL));
    expect(out, type, RESULT, op, own, count, "ReduceScatter");
    SUCCEEDS(ncclReduceScatter(in, in + own * bytes, count, type, op, comm, NULL));
    expect(in + own * bytes, type, RESULT, op, own, count, "ReduceScatter in place");
    fill(in, type, rank, op, 0, count);
    SUCCEEDS(ncclAllReduce(in, in, count, type, op, comm, NULL));
    expect(in, type, RESULT, op, 0, count, "AllReduce in place");
}

static void moves(ncclDataType_t type, size_t count, int root)
{
    size_t all = count * (size_t)size, own = count * (size_t)rank, bytes = sizes[type];
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    fill(in, type, rank, ncclSum, 0, all);
    SUCCEEDS(ncclBroadcast(rank == root ? in : NULL, out, count, type, root, comm, NULL));
    expect(out, type, root, ncclSum, 0, count, "Broadcast");
    SUCCEEDS(ncclScatter(rank == root ? in : NULL, out, count, type, root, comm, NULL));
    expect(out, type, root, ncclSum, own, count, "Scatter");
    SUCCEEDS(ncclAlltoAll(in, out, count, type, comm, NULL));
    for (int of = 0; of < size; of++) {
        expect(out + count * (size_t)of * bytes, type, of, ncclSum, own, count, "AlltoAll");
    }
    SUCCEEDS(ncclAllGather(in, out, count, type, comm, NULL));
    for (int of = 0; of < size; of++) {
        expect(out + count * (size_t)of * bytes, type, of, ncclSum, 0, count, "AllGather");
    }
    memset(out, 0, all * bytes);
    SUCCEEDS(ncclGather(in, rank == root ? out : NULL, count, type, root, comm, NULL));
    for (int of = 0; of < size && rank == root; of++) {
        expect(out + count * (size_t)of * bytes, type, of, ncclSum, 0, count, "Gather");
    }
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclRecv(out, count, type, left, comm, NULL));
    SUCCEEDS(ncclSend(in, count, type, right, comm, NULL));
    SUCCEEDS(ncclGroupEnd());
    expect(out, type, left, ncclSum, 0, count, "Recv");
    SUCCEEDS(ncclBcast(in, count, type, root, comm, NULL));
    expect(in, type, root, ncclSum, 0, count, "Bcast");
}

/* In place: one buffer, in which the shorter one is the rank's own block. */
static void in_place(ncclDataType_t type, size_t count, int root)
{
    size_t all = count * (size_t)size, own = count * (size_t)rank, bytes = sizes[type];
    char *mine = in + own * bytes;
    fill(in, type, rank, ncclSum, 0, all);
    SUCCEEDS(ncclAlltoAll(in, in, count, type, comm, NULL));
    for (int of = 0; of < size; of++) {
        expect(in + count * (size_t)of * bytes, type, of, ncclSum, own, count, "AlltoAll in place");
    }
    fill(mine, type, rank, ncclSum, 0, count);
    SUCCEEDS(ncclAllGather(mine, in, count, type, comm, NULL));
    for (int of = 0; of < size; of++) {
        expect(in + count * (size_t)of * bytes, type, of, ncclSum, 0, count, "AllGather in place");
    }
    fill(mine, type, rank, ncclSum, 0, count);
    SUCCEEDS(ncclGather(mine, in, count, type, root, comm, NULL));
    for (int of = 0; of < size && rank == root; of++) {
        expect(in + count * (size_t)of * bytes, type, of, ncclSum, 0, count, "Gather in place");
    }
    fill(in, type, rank, ncclSum, 0, all);
    SUCCEEDS(ncclScatter(in, rank == root ? mine : out, count, type, root, comm, NULL));
    expect(rank == root ? mine : out, type, root, ncclSum, own, count, "Scatter in place");
    fill(in, type, rank, ncclMax, 0, count);
    SUCCEEDS(ncclReduce(in, in, count, type, ncclMax, root, comm, NULL));
    if (rank == root) {
        expect(in, type, RESULT, ncclMax, 0, count, "Reduce in place");
    }
    fill(in, type, rank, ncclSum, 0, count);
    SUCCEEDS(ncclBroadcast(in, in, count, type, root, comm, NULL));
    expect(in, type, root, ncclSum, 0, count, "Broadcast in place");
}

static void operations(size_t count)
{
    int root = size - 1;
    for (int type = 0; type < ncclNumTypes; type++) {
        ncclRedOp_t scaled;
        char factor[8];
        encode(factor, (ncclDataType_t)type, 2);
        SUCCEEDS(ncclRedOpCreatePreMulSum(&scaled, factor, (ncclDataType_t)type,
                                          ncclScalarHostImmediate, comm));
        require((int)scaled > (int)ncclAvg, "the number of a reduction");
        ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, scaled};
        for (int i = 0; i < 6; i++) {
            /* With the longest buffers, one reduction for each type. */
            if (count < MI || i == type % 6) {
                reductions((ncclDataType_t)type, ops[i], count, root);
            }
        }
        moves((ncclDataType_t)type, count, root);
        in_place((ncclDataType_t)type, count, root);
        SUCCEEDS(ncclRedOpDestroy(scaled, comm));
        FAILS(ncclRedOpDestroy(scaled, comm), ncclInvalidArgument, "ncclRedOp_t");
        FAILS(ncclAllReduce(in, out, 1, (ncclDataType_t)type, scaled, comm, NULL),
              ncclInvalidArgument, "ncclRedOp_t");
    }
}

static void about(void)
{
    int number;
    ncclResult_t state;
    SUCCEEDS(ncclCommCount(comm, &number));
    require(number == size, "the number of ranks");
    SUCCEEDS(ncclCommUserRank(comm, &number));
    require(number == rank, "the rank");
    SUCCEEDS(ncclCommCuDevice(comm, &number));
    require(number == -1, "the device");
    SUCCEEDS(ncclCommGetAsyncError(comm, &state));
    require(state == ncclSuccess, "the state");
    void *token = NULL;
    ncclWindow_t window = (ncclWindow_t)(void *)in;
    SUCCEEDS(ncclCommRegister(comm, in, 64, &token));
    SUCCEEDS(ncclCommDeregister(comm, token));
    SUCCEEDS(ncclCommWindowRegister(comm, in, 64, &window, 0));
    require(window == NULL, "a window");
    SUCCEEDS(ncclCommWindowDeregister(comm, window));
}

static void refusals(void)
{
    FAILS(ncclAllReduce(in, out, 1, ncclInt8, ncclSum, NULL, NULL), ncclInvalidArgument, "null");
    FAILS(ncclAllReduce(in, out, 1, ncclInt8, ncclSum, (ncclComm_t)(void *)in, NULL),
          ncclInvalidArgument, "no such communicator");
    FAILS(ncclAllReduce(in, out, 1, ncclNumTypes, ncclSum, comm, NULL), ncclInvalidArgument, "12");
    FAILS(ncclAllReduce(in, out, 1, ncclInt8, ncclMaxRedOp, comm, NULL), ncclInvalidArgument,
          "ncclRedOp_t");
    FAILS(ncclAllReduce(NULL, out, 1, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument, "send");
    FAILS(ncclBroadcast(in, out, 1, ncclInt8, size, comm, NULL), ncclInvalidArgument, "root");
    FAILS(ncclSend(in, 1, ncclInt8, -1, comm, NULL), ncclInvalidArgument, "peer");
    FAILS(ncclCommCount(comm, NULL), ncclInvalidArgument, "count");
    FAILS(ncclGroupEnd(), ncclInvalidUsage, "no group");
    FAILS(ncclSignal(0, 0, 0, 0, comm, NULL), ncclInvalidUsage, "ncclSignal");
    SUCCEEDS(ncclCommDestroy(NULL));
    SUCCEEDS(ncclCommAbort(NULL));
    SUCCEEDS(ncclCommFinalize(NULL));
    require(strcmp(ncclGetErrorString(ncclSuccess), "no error") == 0, "words");
}

/* Nothing of a group with a bad call begins: no rank sends what it receives, or joins its ranks. */
static void bad_groups(int right, int left)
{
    int32_t own = rank, taken = -1;
    ncclComm_t alone[2] = {NULL, NULL};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    SUCCEEDS(ncclGetUniqueId(&id));
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclRecv(&taken, 1, ncclInt32, left, comm, NULL));
    SUCCEEDS(ncclCommInitRank(&alone[0], 3, id, 0));
    config.blocking = 0;
    SUCCEEDS(ncclCommInitRankConfig(&alone[1], 3, id, 1, &config));
    FAILS(ncclSend(&own, 1, ncclNumTypes, right, comm, NULL), ncclInvalidArgument, "12 is no");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "12 is no");
    for (int i = 0; i < 2; i++) {
        ncclResult_t state = ncclSuccess;
        SUCCEEDS(ncclCommGetAsyncError(alone[i], &state));
        require(state == ncclInternalError, "the state of a communicator that was not made");
        SUCCEEDS(ncclCommAbort(alone[i]));
    }
    SUCCEEDS(ncclGroupStart());
    FAILS(ncclSend(&own, 1, ncclInt32, size, comm, NULL), ncclInvalidArgument, "rank");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "rank");
    SUCCEEDS(ncclGroupStart());
    FAILS(ncclCommFinalize((ncclComm_t)(void *)in), ncclInvalidArgument, "no such communicator");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "no such communicator");
}

/* Messages around the ranks in place, also into a part of what is sent, long and short: the whole
 * value of each arrives, whichever of both calls comes first. */
static void shifts_in_place(int right, int left)
{
    static const size_t counts[] = {1, 1000, MI};
    for (int i = 0; i < 6; i++) {
        size_t count = counts[i / 2], further = i % 2 ? (count + 2) / 3 : 0;
        int32_t *own = (int32_t *)(void *)in, *taken = own + further;
        for (size_t j = 0; j < count; j++) {
            own[j] = rank * MI + (int32_t)j;
        }
        SUCCEEDS(ncclGroupStart());
        if (rank == 0) {
            SUCCEEDS(ncclRecv(taken, count, ncclInt32, left, comm, NULL));
        }
        SUCCEEDS(ncclSend(own, count, ncclInt32, right, comm, NULL));
        if (rank != 0) {
            SUCCEEDS(ncclRecv(taken, count, ncclInt32, left, comm, NULL));
        }
        SUCCEEDS(ncclGroupEnd());
        for (size_t j = 0; j < count; j++) {
            require(taken[j] == left * MI + (int32_t)j, "a shift in place");
        }
    }
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclRecv(in, 2, ncclInt32, left, comm, NULL));
    SUCCEEDS(ncclRecv(in + 4, 1, ncclInt32, left, comm, NULL));
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "overlap");
}

/* Nested and empty groups; collectives and messages in one; a bad call fails the whole group. */
static void groups(void)
{
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    int32_t own = rank, sum = 0, taken = -1;
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclGroupEnd());
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclAllReduce(&own, &sum, 1, ncclInt32, ncclSum, comm, NULL));
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclSend(&own, 1, ncclInt32, right, comm, NULL));
    SUCCEEDS(ncclGroupEnd());
    SUCCEEDS(ncclRecv(&taken, 1, ncclInt32, left, comm, NULL));
    SUCCEEDS(ncclGroupEnd());
    require(sum == size * (size - 1) / 2 && taken == left, "a group");
    shifts_in_place(right, left);
    bad_groups(right, left);
    ncclComm_t none = comm;
    ncclUniqueId id = {{0}};
    SUCCEEDS(ncclGroupStart());
    FAILS(ncclCommInitRank(&none, 1, id, 0), ncclInvalidArgument, "id");
    require(none == NULL, "a communicator that cannot be made");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "id");
    int below = -1;
    FAILS(ncclCommInitAll(&none, 1, &below), ncclInvalidArgument, "devlist");
}

/* The last rank joins the communicator that the others have split off. */
static void grow(ncclComm_t part)
{
    ncclComm_t grown = NULL;
    ncclUniqueId id;
    int last = size - 1, number;
    if (rank == 0) {
        SUCCEEDS(ncclCommGetUniqueId(part, &id));
    }
    SUCCEEDS(ncclBcast(&id, sizeof id, ncclUint8, 0, comm, NULL));
    if (rank != last) {
        FAILS(ncclCommGrow(part, last, NULL, -1, &grown, NULL), ncclInvalidArgument, "nRanks");
    }
    SUCCEEDS(ncclCommGrow(part, size, rank == 0 || rank == last ? &id : NULL,
                          rank == last ? last : -1, &grown, NULL));
    SUCCEEDS(ncclCommUserRank(grown, &number));
    require((number == last) == (rank == last), "the rank in a grown communicator");
    expect_sum(grown, rank, size * (size - 1) / 2, "the sum of a grown communicator");
    SUCCEEDS(ncclCommDestroy(grown));
}

static void parts(void)
{
    /* The parts are blocking, although the communicator is not. */
    ncclConfig_t blocking = NCCL_CONFIG_INITIALIZER;
    blocking.blocking = 1;
    ncclComm_t part = NULL, rest = NULL, none = comm;
    int last = size - 1, number;
    /* The last rank is in no part. */
    SUCCEEDS(ncclCommSplit(comm, rank == last ? -1 : 0, -rank, rank == last ? &none : &part,
                           &blocking));
    require((part == NULL) == (rank == last) && (none == NULL) == (rank == last), "a split");
    if (rank != last) {
        SUCCEEDS(ncclCommUserRank(part, &number));
        require(number == last - 1 - rank, "the rank in a split");
        expect_sum(part, rank, last * (last - 1) / 2, "the sum of a split");
    }
    grow(part);
    if (rank != last) {
        ncclResult_t state;
        SUCCEEDS(ncclCommFinalize(part));
        SUCCEEDS(ncclCommGetAsyncError(part, &state));
        require(state == ncclSuccess, "the state after the end");
        SUCCEEDS(ncclCommDestroy(part));
        FAILS(ncclCommDestroy(part), ncclInvalidArgument, "no such communicator");
        SUCCEEDS(ncclCommShrink(comm, &last, 1, &rest, &blocking, 0));
        SUCCEEDS(ncclCommCount(rest, &number));
        require(number == last, "the size of a shrunk communicator");
        expect_sum(rest, rank, last * (last - 1) / 2, "the sum of a shrunk communicator");
        SUCCEEDS(ncclCommDestroy(rest));
    }
}

/* Nonblocking ranks of this process begin to meet at the end of their group. */
static void in_background(void)
{
    ncclComm_t all[2];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    config.blocking = 0;
    SUCCEEDS(ncclGetUniqueId(&id));
    SUCCEEDS(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        SUCCEEDS(ncclCommInitRankConfig(&all[i], 2, id, i, &config));
    }
    require(ncclGroupEnd() == ncclInProgress, "the end of a group that does not block");
    for (int i = 0; i < 2; i++) {
        await(all[i]);
    }
    SUCCEEDS(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        SUCCEEDS(ncclCommDestroy(all[i]));
    }
    SUCCEEDS(ncclGroupEnd());
    FAILS(ncclCommDestroy(all[0]), ncclInvalidArgument, "no such communicator");
}

/* A reduction belongs to the communicator that it was made for. */
static void own_reductions(const ncclComm_t *all)
{
    float factor = 2, own = 1, sum = 0;
    ncclRedOp_t ops[2];
    for (int i = 0; i < 2; i++) {
        SUCCEEDS(ncclRedOpCreatePreMulSum(&ops[i], &factor, ncclFloat32, ncclScalarHostImmediate,
                                          all[i]));
    }
    for (int i = 0; i < 2; i++) {
        FAILS(ncclAllReduce(&own, &sum, 1, ncclFloat32, ops[i], all[1 - i], NULL),
              ncclInvalidArgument, "belongs to another one");
        SUCCEEDS(ncclRedOpDestroy(ops[i], all[i]));
    }
}

/* The time that a call of all ranks would take, which are in this process. */
static float simulated(const ncclComm_t *all, size_t count)
{
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    SUCCEEDS(ncclGroupStart());
    for (int i = 0; i < 3; i++) {
        SUCCEEDS(ncclAllReduce(in, out, count, ncclFloat32, ncclSum, all[i], NULL));
    }
    SUCCEEDS(ncclGroupSimulateEnd(&info));
    return info.estimatedTime;
}

/* The time that a rank's part of a gather or a scatter would take. */
static float simulated_part(const ncclComm_t *all, int of, int gathers)
{
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    SUCCEEDS(ncclGroupStart());
    if (gathers) {
        SUCCEEDS(ncclGather(in, out, MI, ncclInt8, 0, all[of], NULL));
    } else {
        SUCCEEDS(ncclScatter(in, out, MI, ncclInt8, 0, all[of], NULL));
    }
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclGroupSimulateEnd(&info));
    require(info.estimatedTime < 0, "the time of a group within another");
    SUCCEEDS(ncclGroupSimulateEnd(&info));
    return info.estimatedTime;
}

/* A group that is only simulated says how long its calls would take, and begins none. */
static void simulate(const ncclComm_t *all)
{
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    FAILS(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "no group is open");
    memset(in, 1, MI);
    memset(out, 0, MI);
    float little = simulated(all, 1), much = simulated(all, MI);
    require(0 < little && little < much, "simulated times");
    for (int gathers = 0; gathers < 2; gathers++) {
        float root = simulated_part(all, 0, gathers), other = simulated_part(all, 1, gathers);
        require(0 < root && root == other, "simulated times of a root and of another rank");
    }
    require(*(char *)out == 0, "a simulated call");
    /* A group is closed also where this is refused. */
    SUCCEEDS(ncclGroupStart());
    FAILS(ncclGroupSimulateEnd(NULL), ncclInvalidArgument, "simInfo");
    FAILS(ncclGroupEnd(), ncclInvalidUsage, "no group is open");
    info.magic = 1;
    SUCCEEDS(ncclGroupStart());
    FAILS(ncclGroupSimulateEnd(&info), ncclInvalidArgument, "magic");
    FAILS(ncclGroupEnd(), ncclInvalidUsage, "no group is open");
}

/* Options of a call: a deadline, and a name that errors tell. */
static void have_options(void)
{
    ncclComm_t all[2];
    int32_t one = 1, sum = 0;
    /* With the two of ours, the most that there may be. */
    enum { FOREIGN = 62 };
    ncclConfigExt_t foreign[FOREIGN] = {{NULL, {1, 1}, {.i = -5}}};
    for (int i = 1; i < FOREIGN; i++) {
        foreign[i] = foreign[0];
        foreign[i - 1].next = &foreign[i];
    }
    ncclConfigExt_t name = {foreign, {0x53434c, 2}, {.s = "the lonely sum"}};
    ncclConfigExt_t deadline = {&name, {0x53434c, 1}, {.i = 0}};
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    config.ext = &deadline;
    SUCCEEDS(ncclCommInitAll(all, 2, NULL));
#define CALL ncclAllReduceConfig(&one, &sum, 1, ncclInt32, ncclSum, all[0], NULL, &config)
    FAILS(CALL, ncclInvalidArgument, "not above 0");
    deadline.val.i = 50;
    foreign[FOREIGN - 1].next = &deadline;
    FAILS(CALL, ncclInvalidArgument, "goes round");
    foreign[FOREIGN - 1].next = NULL;
    deadline.key.optionId = 9;
    FAILS(CALL, ncclInvalidArgument, "no option 9");
    deadline.key.optionId = 1;
    FAILS(CALL, ncclTimeout, "the lonely sum");
#undef CALL
    SUCCEEDS(ncclCommAbort(all[0]));
    SUCCEEDS(ncclCommAbort(all[1]));
}

/* What one communicator of a group sends, another one receives over. */
static void swap_across(void)
{
    ncclComm_t up[2], down[2];
    int32_t words[2] = {1, 2};
    require(!ncclCommInitAll(up, 2, NULL) && !ncclCommInitAll(down, 2, NULL), "meeting");
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclRecv(&words[1], 1, ncclInt32, 0, up[1], NULL));
    SUCCEEDS(ncclRecv(&words[0], 1, ncclInt32, 1, down[0], NULL));
    SUCCEEDS(ncclSend(&words[0], 1, ncclInt32, 1, up[0], NULL));
    SUCCEEDS(ncclSend(&words[1], 1, ncclInt32, 0, down[1], NULL));
    SUCCEEDS(ncclGroupEnd());
    require(words[0] == 2 && words[1] == 1, "a swap");
    for (int i = 0; i < 2; i++) {
        require(!ncclCommDestroy(up[i]) && !ncclCommDestroy(down[i]), "ends");
    }
}

/* All ranks are in this process. */
static void threads(void)
{
    ncclComm_t all[3];
    int32_t own[3] = {1, 2, 4}, sum[3] = {0};
    SUCCEEDS(ncclCommInitAll(all, 3, NULL));
    SUCCEEDS(ncclGroupStart());
    for (int i = 0; i < 3; i++) {
        SUCCEEDS(ncclAllReduce(&own[i], &sum[i], 1, ncclInt32, ncclSum, all[i], NULL));
    }
    SUCCEEDS(ncclGroupEnd());
    own_reductions(all);
    simulate(all);
    swap_across();
    for (int i = 0; i < 3; i++) {
        require(sum[i] == 7, "the sum of ranks of this process");
        SUCCEEDS(ncclCommDestroy(all[i]));
    }
}

int main(int argc, char **argv)
{
    require(argc == 4, "usage: host FILE RANK SIZE");
    rank = atoi(argv[2]);
    size = atoi(argv[3]);
    in = calloc(MOST_RANKS * MI, 8);
    out = calloc(MOST_RANKS * MI, 8);
    ncclUniqueId id = meet(argv[1]), zeros = {{0}};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    FAILS(ncclCommInitRank(&comm, size, zeros, rank), ncclInvalidArgument, "id");
    FAILS(ncclCommInitRank(&comm, size, id, size), ncclInvalidArgument, "rank");
    FAILS(ncclCommInitRank(NULL, size, id, rank), ncclInvalidArgument, "communicator");
    config.magic = 1;
    FAILS(ncclCommInitRankConfig(&comm, size, id, rank, &config), ncclInvalidArgument, "magic");
    config.magic = 0xcafebeef;
    config.blocking = 0;
    require(ncclCommInitRankConfig(&comm, size, id, rank, &config) == ncclInProgress, "blocking 0");
    require(comm != NULL, "a communicator that is being made");
    await(comm);
    about();
    refusals();
    groups();
    size_t counts[] = {0, 1, 1237, MI};
    for (int i = 0; i < 4; i++) {
        operations(counts[i]);
    }
    threads();
    have_options();
    in_background();
    parts();
    SUCCEEDS(ncclCommAbort(comm));
    FAILS(ncclCommAbort(comm), ncclInvalidArgument, "no such communicator");
    printf("rank %d of %d: right\n", rank, size);
    free(in);
    free(out);
    return 0;
}
