/*
 * Ranks that are threads of the library, on device 0, call by call on memory of the device; no call
 * changes which context is current in this thread. SPARK_CCL_SHARE_GPU=1 lets ranks share it.
 */
#include "../../tests/driver.h"
#include "ranks.h"

#include <time.h>

enum { RANKS = 2, COUNT = 1000 };

static ncclComm_t all[RANKS];
static CUdeviceptr send[RANKS], recv[RANKS];
static void *context, *streams[RANKS];
static int32_t seen[RANKS * COUNT];

static void sees(int of, int i, int32_t value, const char *what)
{
    require(cuCtxSetCurrent(context) == 0, what);
    require(cuMemcpyDtoHAsync_v2(seen, recv[of], sizeof seen, streams[of]) == 0, what);
    require(cuStreamSynchronize(streams[of]) == 0, what);
    require(cuCtxSetCurrent(NULL) == 0, what);
    require(seen[i] == value, what);
}

/* A call of all ranks in one group, which must leave the current context as it is: none. */
#define TOGETHER(call)                                                                             \
    do {                                                                                           \
        SUCCEEDS(ncclGroupStart());                                                                \
        for (int i = 0; i < RANKS; i++) {                                                          \
            const void *from = (const void *)(uintptr_t)send[i];                                   \
            void *to = (void *)(uintptr_t)recv[i];                                                 \
            (void)from, (void)to;                                                                  \
            SUCCEEDS(call);                                                                        \
        }                                                                                          \
        SUCCEEDS(ncclGroupEnd());                                                                  \
        void *now = &now;                                                                          \
        require(cuCtxGetCurrent(&now) == 0 && now == NULL, #call);                                 \
    } while (0)

#define STREAM ((cudaStream_t)streams[i])

/* To the other rank, out of the memory that its message arrives in. */
static ncclResult_t sendrecv_in_place(int i, cudaStream_t stream)
{
    void *memory = (void *)(uintptr_t)recv[i];
    SUCCEEDS(ncclRecv(memory, COUNT, ncclInt32, 1 - i, all[i], stream));
    return ncclSend(memory, COUNT, ncclInt32, 1 - i, all[i], stream);
}

static void call_by(ncclComm_t *comms, int i)
{
    const void *from = (const void *)(uintptr_t)send[i];
    SUCCEEDS(ncclAllReduce(from, (void *)(uintptr_t)recv[i], COUNT, ncclInt32, ncclSum, comms[i],
                           STREAM));
}

static void call_of(int i) { call_by(all, i); }

/* A call asks the driver little: most of its time is the driver's. */
int fake_asked(void);

static void ask_little(void)
{
    enum { CALLS = 10, OF_STREAM = 2, OF_BUFFER = 2 };
    require(cuCtxSetCurrent(context) == 0, "a context");
    for (int of = 0; of < 1 + CALLS; of++) {
        int before = fake_asked();
        for (int i = 0; i < RANKS; i++) {
            call_of(i);
        }
        /* Whether the stream captures, and its number; of which device each buffer is, and how
         * long. */
        int asked = fake_asked() - before, each = OF_STREAM + 2 * OF_BUFFER;
        require(of == 0 || asked == each * RANKS, "questions of a call");
        before = fake_asked();
        for (int i = 0; i < RANKS; i++) {
            void *memory = (void *)(uintptr_t)recv[i];
            SUCCEEDS(ncclAllReduce(memory, memory, COUNT, ncclInt32, ncclMax, all[i], STREAM));
        }
        asked = fake_asked() - before;
        require(asked == (OF_STREAM + OF_BUFFER) * RANKS, "questions of a call in place");
    }
    require(cuCtxSetCurrent(NULL) == 0, "no context");
    sees(1, 5, 20, "calls that ask little");
}

/* A call in the default stream is refused while a stream captures that synchronizes with it, and a
 * captured call with a deadline. Nothing of them begins, and the communicator goes on. */
static void refuse_during_a_capture(void)
{
    enum { RELAXED = 2 };
    void *captures, *graph;
    require(cuCtxSetCurrent(context) == 0 && cuStreamCreate(&captures, 0) == 0, "a stream");
    require(cuStreamBeginCapture_v2(captures, RELAXED) == 0, "a capture");
    FAILS(ncclAllReduce((void *)(uintptr_t)send[0], (void *)(uintptr_t)recv[0], COUNT, ncclInt32,
                        ncclSum, all[0], NULL),
          ncclUnhandledCudaError, "906");
    ncclConfigExt_t deadline = {NULL, {0x53434c, 1}, {.i = 1000}};
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    config.ext = &deadline;
    FAILS(ncclAllReduceConfig((void *)(uintptr_t)send[0], (void *)(uintptr_t)recv[0], COUNT,
                              ncclInt32, ncclSum, all[0], captures, &config),
          ncclInvalidArgument, "no time limit of its own");
    require(cuStreamEndCapture(captures, &graph) == 0, "a capture that nothing has disturbed");
    require(cuStreamDestroy_v2(captures) == 0, "a stream");
    require(cuCtxSetCurrent(NULL) == 0, "no context");
    TOGETHER(ncclAllReduce(from, to, COUNT, ncclInt32, ncclMax, all[i], STREAM));
    sees(0, 5, 15, "a call after a capture");
}

/* Two graphs of each rank, one of a collective and one of messages in place, which are launched in
 * turn beside other calls. Those of one rank are captured in the thread's default stream. */
static void replay(void)
{
    enum { RELAXED = 2, ROUNDS = 3 };
    void *graphs[2][RANKS], *launched[2][RANKS], *captures[RANKS] = {(void *)2, streams[1]};
    require(cuCtxSetCurrent(context) == 0, "a context");
    for (int of = 0; of < 2; of++) {
        for (int i = 0; i < RANKS; i++) {
            require(cuStreamBeginCapture_v2(captures[i], RELAXED) == 0, "a capture");
        }
        SUCCEEDS(ncclGroupStart());
        for (int i = 0; i < RANKS; i++) {
            void *from = (void *)(uintptr_t)send[i], *to = (void *)(uintptr_t)recv[i];
            SUCCEEDS(of ? sendrecv_in_place(i, captures[i])
                        : ncclAlltoAll(from, to, COUNT / 2, ncclInt32, all[i], captures[i]));
        }
        SUCCEEDS(ncclGroupEnd());
        for (int i = 0; i < RANKS; i++) {
            require(cuStreamEndCapture(captures[i], &graphs[of][i]) == 0, "a graph");
            require(cuGraphInstantiateWithFlags(&launched[of][i], graphs[of][i], 0) == 0,
                    "a graph");
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        require(cuCtxSetCurrent(context) == 0, "a context");
        for (int of = 0; of < 2; of++) {
            for (int i = 0; i < RANKS; i++) {
                require(cuGraphLaunch(launched[of][i], streams[i]) == 0, "a launch");
            }
        }
        sees(0, 5, COUNT / 2 + 5, "what the other rank had");
        sees(1, COUNT / 2 + 5, 15, "what the other rank had");
        TOGETHER(ncclAllReduce(from, to, COUNT, ncclInt32, ncclMax, all[i], STREAM));
        sees(0, 5, 15, "a call beside graphs");
    }
    require(cuCtxSetCurrent(context) == 0, "a context");
    for (int of = 0; of < 2; of++) {
        for (int i = 0; i < RANKS; i++) {
            require(cuGraphExecDestroy(launched[of][i]) == 0, "a graph");
            require(cuGraphDestroy(graphs[of][i]) == 0, "a graph");
        }
    }
    require(cuCtxSetCurrent(NULL) == 0, "no context");
}

/* A graph that is launched after the other rank has left waits for that one no longer. */
static void launch_late(void)
{
    enum { RELAXED = 2 };
    void *graph, *launched;
    ncclResult_t state = ncclSuccess;
    ncclComm_t own[RANKS];
    SUCCEEDS(ncclCommInitAll(own, size, (int[RANKS]){0}));
    call_by(own, 0);
    call_by(own, 1);
    sees(1, 5, 20, "a call before a capture");
    require(cuCtxSetCurrent(context) == 0, "a context");
    require(cuStreamSynchronize(streams[0]) == 0, "a call before a capture");
    require(cuStreamBeginCapture_v2(streams[0], RELAXED) == 0, "a capture");
    call_by(own, 0);
    require(cuStreamEndCapture(streams[0], &graph) == 0, "a graph");
    require(cuGraphInstantiateWithFlags(&launched, graph, 0) == 0, "a graph");
    SUCCEEDS(ncclCommDestroy(own[1]));
    SUCCEEDS(ncclCommGetAsyncError(own[0], &state));
    require(state == ncclSuccess, "the state of a rank in no call");
    require(cuGraphLaunch(launched, streams[0]) == 0, "a launch");
    while (state == ncclSuccess) {
        pause_briefly();
        SUCCEEDS(ncclCommGetAsyncError(own[0], &state));
    }
    require(state == ncclRemoteError, "the state after a launch");
    require(strstr(ncclGetLastError(NULL), "left the communicator") != NULL, "who has left");
    require(cuStreamSynchronize(streams[0]) == 0, "the end of a launch");
    require(cuGraphExecDestroy(launched) == 0 && cuGraphDestroy(graph) == 0, "a graph");
    require(cuCtxSetCurrent(NULL) == 0, "no context");
    SUCCEEDS(ncclCommAbort(own[0]));
}

/* Memory is what the driver knows at each call: freed memory is refused, and memory that is
 * allocated again, at the same address or another, is as long as it is now. */
static void reallocate(void)
{
    enum { SHORT = COUNT / 10 };
    for (int round = 0; round < 6; round++) {
        int own = round % 2, count = round % 4 < 2 ? COUNT : SHORT;
        void *memory = NULL;
        CUdeviceptr other = 0;
        require(cuCtxSetCurrent(context) == 0, "a context");
        if (own) {
            SUCCEEDS(ncclMemAlloc(&memory, 4 * (size_t)count));
        } else {
            require(cuMemAlloc_v2(&other, 4 * (size_t)count) == 0, "memory");
            memory = (void *)(uintptr_t)other;
        }
        require(cuCtxSetCurrent(NULL) == 0, "no context");
#define CALL(i, count, to)                                                                         \
    ncclAllReduce((void *)(uintptr_t)send[i], to, (size_t)(count), ncclInt32, ncclSum, all[i],     \
                  streams[i])
        SUCCEEDS(CALL(0, count, memory));
        SUCCEEDS(CALL(1, count, (void *)(uintptr_t)recv[1]));
        sees(1, SHORT - 1, 10 + 2 * (SHORT - 1), "a call with memory that is new");
        require(cuCtxSetCurrent(context) == 0, "a context");
        require(cuMemcpyDtoHAsync_v2(seen, (uintptr_t)memory, 4 * (size_t)count, streams[0]) == 0 &&
                    cuStreamSynchronize(streams[0]) == 0,
                "a copy");
        require(seen[count - 1] == 10 + 2 * (count - 1), "a call into memory that is new");
        if (count == SHORT && !own) {
            FAILS(CALL(0, COUNT, memory), ncclInvalidArgument, "the memory there only 400");
        }
        if (own) {
            SUCCEEDS(ncclMemFree(memory));
        } else {
            require(cuMemFree_v2(other) == 0, "memory");
        }
        require(cuCtxSetCurrent(NULL) == 0, "no context");
        FAILS(CALL(0, 1, memory), ncclInvalidArgument, "is no memory that the driver");
#undef CALL
    }
}

/* The event of a call occurs once the call has run. */
static void record_an_event(void)
{
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    void *event;
    require(cuCtxSetCurrent(context) == 0 && cuEventCreate(&event, 2) == 0, "an event");
    config.launchCompletionEvent = event;
    SUCCEEDS(ncclAllReduceConfig((void *)(uintptr_t)send[0], (void *)(uintptr_t)recv[0], COUNT,
                                 ncclInt32, ncclMin, all[0], streams[0], &config));
    require(cuEventQuery(event) == 600, "the event of a call that waits");
    SUCCEEDS(ncclAllReduce((void *)(uintptr_t)send[1], (void *)(uintptr_t)recv[1], COUNT, ncclInt32,
                           ncclMin, all[1], streams[1]));
    require(cuEventSynchronize(event) == 0, "the event of a call");
    require(cuCtxSetCurrent(NULL) == 0, "no context");
    sees(0, 5, 5, "a call with an event");
    require(cuEventDestroy_v2(event) == 0, "an event");
}

/* A factor in the GPU's memory is read when the call runs; one of the host's is copied. */
static void multiply(void)
{
    int32_t factor = 7, later = 3;
    CUdeviceptr memory;
    ncclRedOp_t at[RANKS], copied[RANKS];
    require(cuCtxSetCurrent(context) == 0 && cuMemAlloc_v2(&memory, 8) == 0, "memory");
    require(cuMemcpyHtoDAsync_v2(memory, &factor, 4, streams[0]) == 0, "a copy");
    for (int i = 0; i < RANKS; i++) {
        SUCCEEDS(ncclRedOpCreatePreMulSum(&at[i], (void *)(uintptr_t)memory, ncclInt32,
                                          ncclScalarDevice, all[i]));
        factor = i == 0 ? 2 : 5;
        SUCCEEDS(ncclRedOpCreatePreMulSum(&copied[i], &factor, ncclInt32, ncclScalarHostImmediate,
                                          all[i]));
        factor = 0;
    }
    require(cuMemcpyHtoDAsync_v2(memory, &later, 4, streams[0]) == 0, "a copy");
    require(cuStreamSynchronize(streams[0]) == 0, "a copy");
    require(cuCtxSetCurrent(NULL) == 0, "no context");
    TOGETHER(ncclAllReduce(from, to, COUNT, ncclInt32, i == 0 ? at[0] : copied[1], all[i], STREAM));
    sees(1, 5, 3 * 5 + 5 * 15, "a factor of each kind");
    TOGETHER(ncclAllReduce(from, to, COUNT, ncclInt32, copied[i], all[i], STREAM));
    sees(0, 5, 2 * 5 + 5 * 15, "factors that were copied");
    TOGETHER(ncclReduceScatter(from, to, COUNT / 2, ncclInt32, at[i], all[i], STREAM));
    sees(0, 5, 3 * 20, "factors in memory");
    SUCCEEDS(ncclRedOpCreatePreMulSum(&at[0], seen, ncclInt32, ncclScalarDevice, all[0]));
    FAILS(ncclAllReduce((void *)(uintptr_t)send[0], (void *)(uintptr_t)recv[0], COUNT, ncclInt32,
                        at[0], all[0], streams[0]),
          ncclInvalidArgument, "the factor of rank 0");
    require(cuCtxSetCurrent(context) == 0 && cuMemFree_v2(memory) == 0, "memory");
    require(cuCtxSetCurrent(NULL) == 0, "no context");
}

/* A call that waits for the other rank in a stream, while this rank's communicator is destroyed,
 * which returns at once. */
static void destroy_in_a_call(void)
{
    SUCCEEDS(ncclCommInitAll(all, size, (int[RANKS]){0}));
    call_of(0);
    SUCCEEDS(ncclCommDestroy(all[0]));
}

/* A destroyed communicator leaves once its calls have run, however late other ranks come. */
static void leave_late(void)
{
    struct timespec late = {3, 0};
    destroy_in_a_call();
    nanosleep(&late, NULL);
    call_of(1);
    sees(0, 5, 20, "a late call");
    sees(1, 5, 20, "a late call");
    SUCCEEDS(ncclCommDestroy(all[1]));
}

/* An abort ends calls in streams on this rank, also while it is destroyed. Others miss it in calls
 * that need it, and only there. */
static void abort_calls(void)
{
    ncclResult_t state = ncclSuccess;
    destroy_in_a_call();
    SUCCEEDS(ncclCommAbort(all[0]));
    SUCCEEDS(ncclCommGetAsyncError(all[1], &state));
    require(state == ncclSuccess, "the state of a rank in no call");
    call_of(1);
    while (state == ncclSuccess) {
        pause_briefly();
        SUCCEEDS(ncclCommGetAsyncError(all[1], &state));
    }
    require(state == ncclRemoteError, "the state after an abort");
    require(strstr(ncclGetLastError(NULL), "left the communicator") != NULL, "who has left");
    SUCCEEDS(ncclCommAbort(all[1]));
}

/* Ranks that end in a group end after the group's calls. */
static void finalize_in_a_group(void)
{
    SUCCEEDS(ncclCommInitAll(all, size, (int[RANKS]){0}));
    SUCCEEDS(ncclGroupStart());
    for (int i = 0; i < RANKS; i++) {
        SUCCEEDS(ncclCommFinalize(all[i]));
        const void *from = (const void *)(uintptr_t)send[i];
        void *to = (void *)(uintptr_t)recv[i];
        SUCCEEDS(ncclAllReduce(from, to, COUNT, ncclInt32, ncclMax, all[i], STREAM));
    }
    SUCCEEDS(ncclGroupEnd());
    sees(0, 5, 15, "a call before the end");
    sees(1, 5, 15, "a call before the end");
    for (int i = 0; i < RANKS; i++) {
        SUCCEEDS(ncclCommDestroy(all[i]));
    }
}

/* More ranks of a host than kernels between GPUs are for. */
static void many_ranks(void)
{
    enum { MANY = 9, FEW = 100 };
    ncclComm_t many[MANY];
    void *own[MANY];
    SUCCEEDS(ncclCommInitAll(many, MANY, (int[MANY]){0}));
    require(cuCtxSetCurrent(context) == 0, "a context");
    SUCCEEDS(ncclGroupStart());
    for (int i = 0; i < MANY; i++) {
        require(cuStreamCreate(&own[i], 1) == 0, "a stream");
        void *to = (void *)(uintptr_t)(recv[0] + 4 * FEW * (unsigned)i);
        SUCCEEDS(ncclAllReduce((void *)(uintptr_t)send[0], to, FEW, ncclInt32, ncclSum, many[i],
                               own[i]));
    }
    SUCCEEDS(ncclGroupEnd());
    for (int i = 0; i < MANY; i++) {
        require(cuStreamSynchronize(own[i]) == 0, "a call of many ranks");
        sees(0, FEW * i + 5, 5 * MANY, "a sum of many ranks");
        SUCCEEDS(ncclCommDestroy(many[i]));
        require(cuCtxSetCurrent(context) == 0 && cuStreamDestroy_v2(own[i]) == 0, "a stream");
    }
    require(cuCtxSetCurrent(NULL) == 0, "no context");
}

/* Two ranks on one GPU are refused where that is not allowed. */
static void refuse_a_shared_gpu(void)
{
    require(setenv("SPARK_CCL_SHARE_GPU", "0", 1) == 0, "setenv");
    FAILS(ncclCommInitAll(all, size, (int[RANKS]){0}), ncclInvalidArgument, "rank 1");
    require(strstr(ncclGetLastError(NULL), "SPARK_CCL_SHARE_GPU") != NULL, "how it is allowed");
    for (int i = 0; i < RANKS; i++) {
        SUCCEEDS(ncclCommAbort(all[i]));
    }
}

/* Kernels of two communicators are not ordered: a message may not be sent out of memory where that
 * of another one arrives, nor may both arrive there. */
static void refuse_across_communicators(void)
{
    ncclComm_t others[RANKS];
    void *memory = (void *)(uintptr_t)recv[0];
    SUCCEEDS(ncclCommInitAll(others, RANKS, (int[RANKS]){0}));
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclSend(memory, COUNT, ncclInt32, 1, all[0], streams[0]));
    SUCCEEDS(ncclRecv((char *)memory + 4, 1, ncclInt32, 1, others[0], streams[0]));
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "another communicator of the group receives");
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclRecv(memory, COUNT, ncclInt32, 1, all[0], streams[0]));
    SUCCEEDS(ncclRecv((char *)memory + 4, 1, ncclInt32, 1, others[0], streams[0]));
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "overlap");
    for (int i = 0; i < RANKS; i++) {
        SUCCEEDS(ncclCommDestroy(others[i]));
    }
}

/* Memory of a GPU is refused by a communicator of host memory. */
static void refuse_on_the_host(void)
{
    void *memory = (void *)(uintptr_t)recv[0];
    require(setenv("SPARK_CCL_BACKEND", "host", 1) == 0, "setenv");
    SUCCEEDS(ncclCommInitAll(&comm, 1, NULL));
    FAILS(ncclAllReduce(memory, memory, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidArgument,
          "memory of a GPU");
    SUCCEEDS(ncclCommDestroy(comm));
}

int main(void)
{
    size = RANKS;
    int devices[RANKS] = {0}, number;
    require(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0, "a device");
    require(cuCtxSetCurrent(context) == 0, "a context");
    for (int i = 0; i < RANKS; i++) {
        int32_t own[COUNT];
        for (int j = 0; j < COUNT; j++) {
            own[j] = 10 * i + j;
        }
        void *memory = NULL;
        SUCCEEDS(ncclMemAlloc(&memory, sizeof own));
        send[i] = (uintptr_t)memory;
        require(cuMemAlloc_v2(&recv[i], sizeof seen) == 0, "memory");
        require(cuStreamCreate(&streams[i], 1) == 0, "a stream");
        require(cuMemcpyHtoDAsync_v2(send[i], own, sizeof own, streams[i]) == 0, "a copy");
        require(cuStreamSynchronize(streams[i]) == 0, "a copy");
    }
    require(cuCtxSetCurrent(NULL) == 0, "no context");
    SUCCEEDS(ncclCommInitAll(all, size, devices));
    comm = all[0];
    SUCCEEDS(ncclCommCuDevice(comm, &number));
    require(number == 0, "the device");
    TOGETHER(ncclAllReduce(from, to, COUNT, ncclInt32, ncclSum, all[i], STREAM));
    sees(1, 5, 20, "AllReduce");
    TOGETHER(ncclAllGather(from, to, COUNT, ncclInt32, all[i], STREAM));
    sees(0, COUNT + 5, 15, "AllGather");
    TOGETHER(ncclBroadcast(from, to, COUNT, ncclInt32, 1, all[i], STREAM));
    sees(0, 5, 15, "Broadcast");
    TOGETHER(ncclReduceScatter(from, to, COUNT / 2, ncclInt32, ncclMax, all[i], STREAM));
    sees(1, 5, 10 + COUNT / 2 + 5, "ReduceScatter");
    TOGETHER(ncclAlltoAll(from, to, COUNT / 2, ncclInt32, all[i], STREAM));
    sees(1, 5, COUNT / 2 + 5, "AlltoAll");
    TOGETHER(ncclAlltoAll(to, to, COUNT / 2, ncclInt32, all[i], STREAM));
    sees(0, COUNT / 2 + 5, 5 + COUNT / 2, "AlltoAll in place, there and back");
    sees(1, 5, 15, "AlltoAll in place, there and back");
    SUCCEEDS(ncclGroupStart());
    for (int i = 0; i < RANKS; i++) {
        void *from = (void *)(uintptr_t)send[i], *to = (void *)(uintptr_t)recv[i];
        SUCCEEDS(ncclSend(from, COUNT, ncclInt32, 1 - i, all[i], STREAM));
        SUCCEEDS(ncclRecv(to, COUNT, ncclInt32, 1 - i, all[i], STREAM));
    }
    SUCCEEDS(ncclGroupEnd());
    sees(0, 7, 17, "Recv");
    TOGETHER(sendrecv_in_place(i, STREAM));
    sees(0, 7, 7, "a shift in place");
    sees(1, 7, 17, "a shift in place");
    SUCCEEDS(ncclGroupStart());
    SUCCEEDS(ncclRecv((void *)(uintptr_t)recv[0], 2, ncclInt32, 1, all[0], streams[0]));
    SUCCEEDS(ncclRecv((void *)(uintptr_t)(recv[0] + 4), 2, ncclInt32, 1, all[0], streams[0]));
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "overlap");
    ask_little();
    refuse_during_a_capture();
    /* Nothing is captured once a communicator ends, which has the driver wait for all. */
    replay();
    launch_late();
    refuse_across_communicators();
    reallocate();
    record_an_event();
    multiply();
    FAILS(ncclAllReduce(seen, seen, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidArgument,
          "is no memory that the driver of device 0 knows of");
    FAILS(ncclAllReduce((void *)(uintptr_t)send[0], seen, 1, ncclInt32, ncclSum, comm, NULL),
          ncclInvalidArgument, "receive buffer of rank 0");
    for (int i = 0; i < RANKS; i++) {
        SUCCEEDS(ncclCommDestroy(all[i]));
    }
    leave_late();
    finalize_in_a_group();
    abort_calls();
    many_ranks();
    refuse_a_shared_gpu();
    refuse_on_the_host();
    for (int i = 0; i < RANKS; i++) {
        SUCCEEDS(ncclMemFree((void *)(uintptr_t)send[i]));
        FAILS(ncclMemFree((void *)(uintptr_t)send[i]), ncclInvalidArgument, "ncclMemAlloc");
    }
    SUCCEEDS(ncclMemFree(NULL));
    puts("right");
    return 0;
}
