/*
 * Ranks that are threads of the library, on device 0, call by call on memory of the device; no call
 * changes which context is current in this thread. SPARK_CCL_SHARE_GPU=1 lets ranks share it.
 */
#include "../../tests/driver.h"
#include "ranks.h"

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

/* A call of all ranks in one group, which changes no context: that of nothing is current. */
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
    SUCCEEDS(ncclGroupStart());
    for (int i = 0; i < RANKS; i++) {
        void *from = (void *)(uintptr_t)send[i], *to = (void *)(uintptr_t)recv[i];
        SUCCEEDS(ncclSend(from, COUNT, ncclInt32, 1 - i, all[i], STREAM));
        SUCCEEDS(ncclRecv(to, COUNT, ncclInt32, 1 - i, all[i], STREAM));
    }
    SUCCEEDS(ncclGroupEnd());
    sees(0, 7, 17, "Recv");
    FAILS(ncclAllReduce(seen, seen, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidArgument,
          "memory");
    for (int i = 0; i < RANKS; i++) {
        SUCCEEDS(ncclCommDestroy(all[i]));
        SUCCEEDS(ncclMemFree((void *)(uintptr_t)send[i]));
        FAILS(ncclMemFree((void *)(uintptr_t)send[i]), ncclInvalidArgument, "ncclMemAlloc");
    }
    SUCCEEDS(ncclMemFree(NULL));
    puts("right");
    return 0;
}
