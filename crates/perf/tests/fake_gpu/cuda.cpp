// The functions of libcuda that spark-perf and the crates below it use.
#include "device.h"

#include <atomic>
#include <chrono>

std::recursive_mutex everything;
thread_local int current = 0;

static std::vector<Stream *> streams;
// A device of which a kernel has gone astray, until its context is reset; here, for good.
static std::atomic<int> broken{-1};
static std::map<int, Stream *> default_streams;

int device_count() {
    const char *count = getenv("FAKE_GPUS");
    return count ? atoi(count) : 0;
}

Stream *stream_of(void *handle, int device) {
    Guard guard(everything);
    if (handle) return static_cast<Stream *>(handle);
    Stream *&stream = default_streams[device];
    if (!stream) streams.push_back(stream = new Stream{device, {}, nullptr});
    return stream;
}

static void work_off() {
    for (bool moved = true; moved;) {
        moved = false;
        for (Stream *stream : streams) {
            if (stream->device == broken) continue;
            while (!stream->steps.empty() && stream->steps.front()()) {
                stream->steps.pop_front();
                moved = true;
            }
        }
    }
}

void enqueue(Stream *stream, Work work) {
    Guard guard(everything);
    if (stream->capture)
        stream->capture->push_back(work);
    else
        stream->steps.push_back(work());
}

void enqueue_now(Stream *stream, std::function<void()> action) {
    enqueue(stream, [=] { return [=] { return action(), true; }; });
}

static bool idle(Stream *stream) {
    Guard guard(everything);
    work_off();
    return stream->steps.empty();
}

static double milliseconds() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

struct Event {
    // How often it was recorded, and up to which of these its streams have come.
    int recorded, reached;
    double time;
};

// One for each device; a context's handle is its place.
static char contexts[64];

extern "C" {
int cuStreamSynchronize(void *stream);


#define NOTHING(name) \
    int name() { return SUCCESS; }

NOTHING(cuMemPoolSetAccess)
NOTHING(cuDevicePrimaryCtxRelease_v2)
NOTHING(cuThreadExchangeStreamCaptureMode)
NOTHING(cuStreamDestroy_v2)
NOTHING(cuEventDestroy_v2)
NOTHING(cuGraphDestroy)
NOTHING(cuModuleUnload)

int cuInit(unsigned) { return device_count() ? SUCCESS : NO_DEVICE; }
int cuGetErrorName(int, const char **name) { return *name = "FAKE", SUCCESS; }
int cuGetErrorString(int, const char **text) { return *text = "a fake error", SUCCESS; }

int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, SUCCESS; }
int cuDeviceGetCount(int *count) { return *count = device_count(), SUCCESS; }
int cuDeviceGetAttribute(int *value, int, int) { return *value = 0, SUCCESS; }
int cuDeviceCanAccessPeer(int *can, int, int) { return *can = 1, SUCCESS; }
int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = 1 << 30, SUCCESS; }
int cuDeviceGetDefaultMemPool(void **pool, int) { return *pool = nullptr, SUCCESS; }
int cuDeviceGetName(char *name, int length, int device) {
    return snprintf(name, length, "Fake %d", device), SUCCESS;
}
int cuDeviceGetPCIBusId(char *place, int length, int device) {
    return snprintf(place, length, "0000:%02X:00.0", 0x1a + device), SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    return *context = contexts + device, SUCCESS;
}
int cuCtxGetCurrent(void **context) { return *context = contexts + current, SUCCESS; }
int cuCtxSetCurrent(void *context) {
    return current = static_cast<char *>(context) - contexts, SUCCESS;
}
int cuCtxSynchronize() {
    Guard guard(everything);
    work_off();
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = *total = 256 << 20;
    return SUCCESS;
}
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    // On pages of its own, as a symmetric window must be; not zero, as memory may be found.
    size_t pages = (bytes + 4095) / 4096 * 4096;
    void *memory = aligned_alloc(4096, pages);
    memset(memory, 0xee, pages);
    *address = reinterpret_cast<uint64_t>(memory);
    return SUCCESS;
}
int cuMemAllocAsync(uint64_t *address, size_t bytes, void *) { return cuMemAlloc_v2(address, bytes); }
int cuMemFree_v2(uint64_t address) { return free(reinterpret_cast<void *>(address)), SUCCESS; }
int cuMemFreeAsync(uint64_t address, void *stream) {
    enqueue_now(stream_of(stream, current), [=] { free(reinterpret_cast<void *>(address)); });
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const char *from, size_t bytes, void *stream) {
    auto staged = std::make_shared<std::vector<char>>(from, from + bytes);
    enqueue_now(stream_of(stream, current),
                [=] { memcpy(reinterpret_cast<void *>(to), staged->data(), bytes); });
    return SUCCESS;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    enqueue_now(stream_of(stream, current), [=] {
        memcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes);
    });
    return SUCCESS;
}
// As CUDA with memory that is not pinned: it returns when all is there.
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    cuMemcpyDtoDAsync_v2(reinterpret_cast<uint64_t>(to), from, bytes, stream);
    return cuStreamSynchronize(stream);
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream) {
    enqueue_now(stream_of(stream, current),
                [=] { memset(reinterpret_cast<void *>(to), value, bytes); });
    return SUCCESS;
}

int cuStreamCreate(void **stream, unsigned) {
    Guard guard(everything);
    streams.push_back(new Stream{current, {}, nullptr});
    *stream = streams.back();
    return SUCCESS;
}
int cuStreamQuery(void *handle) {
    Stream *stream = stream_of(handle, current);
    if (stream->device == broken) return ILLEGAL_ADDRESS;
    if (stream->capture) return CAPTURE_UNSUPPORTED;
    return idle(stream) ? SUCCESS : NOT_READY;
}
int cuStreamSynchronize(void *handle) {
    Stream *stream = stream_of(handle, current);
    if (stream->capture) return CAPTURE_UNSUPPORTED;
    while (stream->device != broken && !idle(stream)) std::this_thread::yield();
    return stream->device == broken ? ILLEGAL_ADDRESS : SUCCESS;
}
// For tests: no work of a device is done any more, and its streams say why.
void fake_break(int device) { broken = device; }
int cuStreamIsCapturing(void *handle, int *status) {
    Guard guard(everything);
    *status = stream_of(handle, current)->capture != nullptr;
    return SUCCESS;
}
int cuStreamBeginCapture_v2(void *handle, int) {
    Guard guard(everything);
    Stream *stream = stream_of(handle, current);
    if (!handle || stream->capture) return CAPTURE_UNSUPPORTED;
    stream->capture = std::make_unique<Graph>();
    return SUCCESS;
}
int cuStreamEndCapture(void *handle, void **graph) {
    Guard guard(everything);
    *graph = stream_of(handle, current)->capture.release();
    return SUCCESS;
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, uint64_t) {
    return *executable = graph, SUCCESS;
}
int cuGraphLaunch(void *graph, void *stream) {
    for (const Work &work : *static_cast<Graph *>(graph)) enqueue(stream_of(stream, current), work);
    return SUCCESS;
}
int cuGraphExecDestroy(void *graph) { return delete static_cast<Graph *>(graph), SUCCESS; }

int cuEventCreate(void **event, unsigned) { return *event = new Event{}, SUCCESS; }
int cuEventRecord(void *handle, void *stream) {
    Event *event = static_cast<Event *>(handle);
    Guard guard(everything);
    int record = ++event->recorded;
    enqueue_now(stream_of(stream, current), [=] {
        event->reached = record;
        event->time = milliseconds();
    });
    return SUCCESS;
}
int cuStreamWaitEvent(void *stream, void *handle, unsigned) {
    Event *event = static_cast<Event *>(handle);
    Guard guard(everything);
    int record = event->recorded;
    enqueue(stream_of(stream, current), [=] { return [=] { return event->reached >= record; }; });
    return SUCCESS;
}
int cuEventQuery(void *handle) {
    Guard guard(everything);
    work_off();
    Event *event = static_cast<Event *>(handle);
    if (current == broken) return ILLEGAL_ADDRESS;
    return event->reached < event->recorded ? NOT_READY : SUCCESS;
}
int cuEventSynchronize(void *event) {
    int said;
    while ((said = cuEventQuery(event)) == NOT_READY) std::this_thread::yield();
    return said;
}
int cuEventElapsedTime(float *elapsed, void *start, void *end) {
    Guard guard(everything);
    Event *first = static_cast<Event *>(start), *last = static_cast<Event *>(end);
    if (first->reached < first->recorded || last->reached < last->recorded) return NOT_READY;
    *elapsed = static_cast<float>(last->time - first->time);
    return SUCCESS;
}

int cuModuleLoadData(void **module, const char *text) {
    *module = contexts;
    return strstr(text, ".version") ? SUCCESS : INVALID_VALUE;
}
int cuModuleGetFunction(void **function, void *, const char *name) {
    return *function = new std::string(name), SUCCESS;
}

}  // extern "C"

// The kernels themselves: their threads run one after the other.
struct Place {
    unsigned x;
};
static thread_local Place blockIdx, threadIdx, gridDim, blockDim;
static void atomicAdd(unsigned long long *sum, unsigned long long value) { *sum += value; }
#define __device__ static
#define __global__
#include "../../kernels/check.cu"

using Arguments = std::vector<uint64_t>;

template <typename T>
static void run(bool counts, const Arguments &a) {
    T *memory = reinterpret_cast<T *>(a[0]), *pattern = reinterpret_cast<T *>(a[2]);
    if (counts)
        count<T>(memory, a[1], pattern, a[3], static_cast<T>(a[4]), reinterpret_cast<u64 *>(a[5]));
    else
        repeat<T>(memory, a[1], pattern, a[3]);
}

extern "C" int cuLaunchKernel(void *function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                              unsigned, unsigned, void *stream, uint64_t **arguments, void **) {
    const std::string &name = *static_cast<std::string *>(function);
    bool counts = name.rfind("count", 0) == 0;
    size_t bits = atoi(name.c_str() + name.find('_') + 1);
    Arguments values;
    for (int i = 0; i < (counts ? 6 : 4); i++) values.push_back(*arguments[i]);
    if (values[0] % (bits / 8)) return INVALID_VALUE;
    enqueue_now(stream_of(stream, current), [=] {
        gridDim.x = blocks, blockDim.x = threads;
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
            for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
                if (bits == 8) run<unsigned char>(counts, values);
                if (bits == 16) run<unsigned short>(counts, values);
                if (bits == 32) run<unsigned int>(counts, values);
                if (bits == 64) run<unsigned long long>(counts, values);
            }
        }
    });
    return SUCCESS;
}
