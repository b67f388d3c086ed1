// The functions of libcuda that spark-perf and the crates below it use.
#include "device.h"
#include <algorithm>

#include <elf.h>

#include <atomic>
#include <set>

std::recursive_mutex everything;
thread_local int current = NO_DEVICE_IS_CURRENT;

// These are never destroyed: threads may use the driver while the process exits.
static std::vector<Stream *> &streams = *new std::vector<Stream *>;
// The device on which a kernel has failed. A real one recovers when its context is reset; this one
// never does.
static std::atomic<int> broken{-1};
// The device on which a kernel of the program's runs, which no stream here knows.
static std::atomic<int> occupied{-1};
static std::map<int, Stream *> &default_streams = *new std::map<int, Stream *>;
long counts[COUNTS];
// How many of the next waits for events fail.
static int failing_waits;
// After how many launches of this thread's the next is refused, as another thread's capture would;
// -1: none.
static thread_local int refused_after = -1;
enum { GLOBAL, THREAD_LOCAL, RELAXED };
static thread_local int capture_mode = GLOBAL;

int device_count() {
    const char *count = getenv("FAKE_GPUS");
    return count ? atoi(count) : 0;
}

size_t device_bytes() {
    const char *megabytes = getenv("FAKE_MEGABYTES");
    return static_cast<size_t>(megabytes ? atoi(megabytes) : 256) << 20;
}

// Of each device memory, by its start: where it ends, and its device.
static std::map<uint64_t, std::pair<uint64_t, int>> &memories = *new std::map<uint64_t, std::pair<uint64_t, int>>;

void set_memory(uint64_t start, size_t bytes, int device) {
    Guard guard(everything);
    memories.erase(start);
    if (bytes) memories[start] = {start + bytes, device};
}

// Null and CU_STREAM_LEGACY.
static bool is_default(void *handle) { return reinterpret_cast<uintptr_t>(handle) <= 1; }

// CU_STREAM_PER_THREAD.
static bool is_of_thread(void *handle) { return reinterpret_cast<uintptr_t>(handle) == 2; }

static Stream *stream_of_thread(int device) {
    static thread_local std::map<int, Stream *> own;
    Stream *&stream = own[device];
    if (!stream) streams.push_back(stream = new Stream{device, std::this_thread::get_id(), {}, nullptr, false});
    return stream;
}

Stream *stream_of(void *handle, int device) {
    Guard guard(everything);
    if (is_of_thread(handle)) return stream_of_thread(device);
    if (!is_default(handle)) return static_cast<Stream *>(handle);
    Stream *&stream = default_streams[device];
    if (!stream) streams.push_back(stream = new Stream{device, {}, {}, nullptr, false});
    return stream;
}

// The stream that a call of the driver uses.
static Stream *used(void *handle) {
    Guard guard(everything);
    Stream *stream = stream_of(handle, current);
    if (!is_default(handle) && !is_of_thread(handle) && stream->maker != std::this_thread::get_id()) counts[STRANGERS]++;
    if (stream->destroyed) counts[MISUSES]++;
    return stream;
}

int unsafe_in_captures() {
    Guard guard(everything);
    if (capture_mode == RELAXED) return SUCCESS;
    int said = SUCCESS;
    for (Stream *stream : streams) {
        Capture *capture = stream->capture.get();
        if (!capture || capture->mode == RELAXED) continue;
        if (capture->mode == GLOBAL || capture->thread == std::this_thread::get_id()) {
            capture->invalid = true;
            said = CAPTURE_UNSUPPORTED;
        }
    }
    return said;
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
        stream->capture->graph.lanes[stream->lane].push_back(work);
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

static bool idle_device(int device) {
    Guard guard(everything);
    work_off();
    if (device == occupied) return false;
    return std::all_of(streams.begin(), streams.end(), [=](Stream *one) { return one->device != device || one->steps.empty(); });
}

// Of each device: how many threads are in a call that frees memory there.
static std::atomic<int> freeing[64];

// What the driver does first in calls that take the lock of a context: they wait while a thread
// frees memory there. Measured on H200 (driver 580). To be called without a lock.
static int enter() {
    if (current == NO_DEVICE_IS_CURRENT) return INVALID_CONTEXT;
    while (freeing[current]) between_looks();
    return SUCCESS;
}

static void wait_for_device() {
    while (current != broken && !idle_device(current)) between_looks();
}

// Waits for all that runs on the device, and holds others up meanwhile.
static void wait_and_hold_up() {
    freeing[current]++;
    wait_for_device();
    freeing[current]--;
}

static double milliseconds() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

// The work that an event was recorded after.
struct Record {
    bool reached;
    double time;
    // What it was captured in.
    std::shared_ptr<Capture> capture;
};

struct Event {
    std::shared_ptr<Record> last;

    bool is_pending() const { return last && !last->reached; }
    bool is_captured() const { return last && last->capture; }
};

// One per device; the address of an entry is the handle of the device's context.
static char contexts[64];

extern "C" {
int cuStreamSynchronize(void *stream);


#define NOTHING(name) \
    int name() { return SUCCESS; }

NOTHING(cuMemPoolSetAccess)
NOTHING(cuDevicePrimaryCtxRelease_v2)
NOTHING(cuEventDestroy_v2)
NOTHING(cuGraphDestroy)

int cuDriverGetVersion(int *version) { return *version = 12040, SUCCESS; }
int cuInit(unsigned) { return device_count() ? SUCCESS : NO_DEVICE; }
int cuGetErrorName(int, const char **name) { return *name = "FAKE", SUCCESS; }
int cuGetErrorString(int, const char **text) { return *text = "a fake error", SUCCESS; }

int cuDevicePrimaryCtxRetain(void **context, int device) {
    return *context = contexts + device, SUCCESS;
}
int cuCtxGetId(void *context, uint64_t *id) {
    return *id = 1 + (static_cast<char *>(context) - contexts), SUCCESS;
}
int cuCtxGetCurrent(void **context) {
    return *context = current == NO_DEVICE_IS_CURRENT ? nullptr : contexts + current, SUCCESS;
}
int cuCtxSetCurrent(void *context) {
    asked++, current = NO_DEVICE_IS_CURRENT;
    if (context) current = static_cast<int>(static_cast<char *>(context) - contexts);
    return SUCCESS;
}
// Waits for all that runs on the device. Unlike calls that free memory, it holds nobody up; but it
// makes captures of the device invalid, also in the relaxed mode.
int cuCtxSynchronize() {
    if (current == NO_DEVICE_IS_CURRENT) return INVALID_CONTEXT;
    {
        Guard guard(everything);
        counts[SETTLED]++;
        bool captures = false;
        for (Stream *stream : streams) {
            if (stream->device != current || !stream->capture) continue;
            captures = stream->capture->invalid = true;
        }
        if (captures) return CAPTURE_UNSUPPORTED;
    }
    wait_for_device();
    return current == broken ? ILLEGAL_ADDRESS : SUCCESS;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = *total = device_bytes();
    return SUCCESS;
}
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    if (int said = enter()) return said;
    if (int said = unsafe_in_captures()) return said;
    // Separate pages, as a symmetric window requires. The contents are not zero, as in real memory.
    size_t pages = (bytes + 4095) / 4096 * 4096;
    void *memory = aligned_alloc(4096, pages);
    memset(memory, 0xee, pages);
    *address = reinterpret_cast<uint64_t>(memory);
    set_memory(*address, bytes, current);
    return SUCCESS;
}
int cuMemAllocAsync(uint64_t *address, size_t bytes, void *) {
    return cuMemAlloc_v2(address, bytes);
}
int cuMemFree_v2(uint64_t address) {
    if (int said = enter()) return said;
    if (int said = unsafe_in_captures()) return said;
    wait_and_hold_up();
    set_memory(address, 0, 0);
    return free(reinterpret_cast<void *>(address)), SUCCESS;
}
// The memory that an address is in, or the end of all.
static auto memory_of(uint64_t address) {
    auto behind = memories.upper_bound(address);
    if (behind == memories.begin()) return memories.end();
    auto before = std::prev(behind);
    return address < before->second.first ? before : memories.end();
}
int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
    Guard guard(everything);
    auto found = (asked++, memory_of(address));
    if (found == memories.end()) return INVALID_VALUE;
    int of = attribute == 2 ? 2 : attribute == 8 ? 0 : found->second.second; // Type, managed.
    return *static_cast<int *>(value) = of, SUCCESS;
}
// Of mapped memory, one mapping.
int cuMemGetAddressRange_v2(uint64_t *start, size_t *bytes, uint64_t address) {
    Guard guard(everything);
    auto found = (asked++, memory_of(address));
    if (found == memories.end()) return NOT_FOUND;
    return *start = found->first, *bytes = found->second.first - found->first, SUCCESS;
}
int cuMemHostAlloc(void **memory, size_t bytes, unsigned) {
    if (int said = enter()) return said;
    if (int said = unsafe_in_captures()) return said;
    *memory = pinned_memory(current, bytes);
    if (*memory) set_memory(reinterpret_cast<uint64_t>(*memory), bytes, current);
    return *memory ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned) {
    if (int said = enter()) return said;
    return set_memory(reinterpret_cast<uint64_t>(memory), bytes, current), SUCCESS;
}
int cuMemHostUnregister(void *memory) {
    if (int said = enter()) return said;
    wait_and_hold_up();
    return set_memory(reinterpret_cast<uint64_t>(memory), 0, 0), SUCCESS;
}
int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned) {
    return *address = reinterpret_cast<uint64_t>(memory), SUCCESS;
}
int cuMemFreeHost(void *memory) {
    if (int said = enter()) return said;
    if (int said = unsafe_in_captures()) return said;
    wait_and_hold_up();
    set_memory(reinterpret_cast<uint64_t>(memory), 0, 0);
    return pinned_memory_is_freed(current), free(memory), SUCCESS;
}
int cuMemFreeAsync(uint64_t address, void *stream) {
    enqueue_now(stream_of(stream, current), [=] {
        set_memory(address, 0, 0);
        free(reinterpret_cast<void *>(address));
    });
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const char *from, size_t bytes, void *stream) {
    if (int said = enter()) return said;
    auto staged = std::make_shared<std::vector<char>>(from, from + bytes);
    enqueue_now(stream_of(stream, current),
                [=] { memcpy(reinterpret_cast<void *>(to), staged->data(), bytes); });
    return SUCCESS;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    if (int said = enter()) return said;
    enqueue_now(stream_of(stream, current), [=] {
        memcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes);
    });
    return SUCCESS;
}
// Like CUDA with memory that is not pinned: returns when the copy is complete.
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    auto place = reinterpret_cast<uint64_t>(to);
    if (int said = cuMemcpyDtoDAsync_v2(place, from, bytes, stream)) return said;
    return cuStreamSynchronize(stream);
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream) {
    if (int said = enter()) return said;
    enqueue_now(stream_of(stream, current),
                [=] { memset(reinterpret_cast<void *>(to), value, bytes); });
    return SUCCESS;
}

int cuThreadExchangeStreamCaptureMode(int *mode) { return std::swap(*mode, capture_mode), SUCCESS; }

int cuStreamCreate(void **stream, unsigned flags) {
    if (int said = enter()) return said;
    Guard guard(everything);
    if (int said = unsafe_in_captures()) return said;
    streams.push_back(new Stream{current, std::this_thread::get_id(), {}, nullptr, false});
    streams.back()->blocking = flags == 0;
    *stream = streams.back();
    return SUCCESS;
}
// Work in the stream still runs. The stream itself is kept, to detect a use after its end.
int cuStreamDestroy_v2(void *handle) {
    Guard guard(everything);
    return static_cast<Stream *>(handle)->destroyed = true, SUCCESS;
}
static int look_at(Stream *stream) {
    Guard guard(everything);
    if (stream->destroyed) return INVALID_HANDLE;
    if (stream->capture) return stream->capture->invalid = true, CAPTURE_UNSUPPORTED;
    return unsafe_in_captures();
}
int cuStreamQuery(void *handle) {
    Guard guard(everything);
    Stream *stream = used(handle);
    counts[LOOKS]++;
    if (int said = look_at(stream)) return said;
    if (stream->device == broken) return ILLEGAL_ADDRESS;
    return idle(stream) ? SUCCESS : NOT_READY;
}
int cuStreamSynchronize(void *handle) {
    Stream *stream = used(handle);
    if (int said = look_at(stream)) return said;
    while (stream->device != broken && !idle(stream)) between_looks();
    return stream->device == broken ? ILLEGAL_ADDRESS : SUCCESS;
}
// The default stream cannot be asked about while a stream captures that synchronizes with it.
static int ask_about(void *handle, Stream *stream) {
    if (stream->destroyed) return INVALID_HANDLE;
    if (!is_default(handle)) return SUCCESS;
    auto refuses = [=](Stream *one) { return one->device == stream->device && one->blocking && one->capture; };
    return std::any_of(streams.begin(), streams.end(), refuses) ? CAPTURE_IMPLICIT : SUCCESS;
}
int cuStreamIsCapturing(void *handle, int *status) {
    Guard guard(everything);
    Stream *stream = used(handle);
    if (int said = (asked++, ask_about(handle, stream))) return said;
    return *status = stream->capture != nullptr, SUCCESS;
}
int cuStreamGetCtx(void *handle, void **context) {
    Stream *stream = used(handle);
    if (stream->destroyed) return INVALID_HANDLE;
    return *context = contexts + stream->device, SUCCESS;
}
int cuStreamGetId(void *handle, uint64_t *id) {
    Stream *stream = used(handle);
    if (int said = (asked++, look_at(stream))) return said;
    return *id = reinterpret_cast<uint64_t>(stream), SUCCESS;
}
int cuStreamBeginCapture_v2(void *handle, int mode) {
    Guard guard(everything);
    Stream *stream = used(handle);
    if (is_default(handle) || stream->capture) return CAPTURE_UNSUPPORTED;
    static uint64_t begun = 0;
    auto thread = std::this_thread::get_id();
    stream->capture = std::make_shared<Capture>(Capture{{{{}}, {}}, ++begun, mode, thread, false});
    stream->lane = 0;
    return SUCCESS;
}
int cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, void **, const void ***, size_t *) {
    Guard guard(everything);
    Stream *stream = used(handle);
    if (int said = ask_about(handle, stream)) return said;
    *status = stream->capture != nullptr;
    if (stream->capture) *id = stream->capture->id;
    return SUCCESS;
}
int cuStreamEndCapture(void *handle, void **graph) {
    Guard guard(everything);
    std::shared_ptr<Capture> capture = used(handle)->capture;
    *graph = nullptr;
    for (Stream *stream : streams) {
        if (capture && stream->capture == capture) stream->capture = nullptr;
    }
    if (!capture || capture->invalid) return CAPTURE_INVALIDATED;
    return *graph = new Graph(std::move(capture->graph)), SUCCESS;
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, uint64_t) {
    return *executable = graph, SUCCESS;
}
int cuGraphUpload(void *, void *) { return enter(); }
// Each lane but the first runs in a stream of its own.
int cuGraphLaunch(void *handle, void *stream_handle) {
    if (int said = enter()) return said;
    Guard guard(everything);
    const Graph &graph = *static_cast<Graph *>(handle);
    Stream *stream = used(stream_handle);
    auto has_begun = std::make_shared<bool>(false);
    enqueue_now(stream, [=, records = graph.records] {
        for (const auto &record : records) record->reached = false;
        *has_begun = true;
    });
    std::vector<std::shared_ptr<bool>> ends;
    for (const auto &lane : graph.lanes) {
        bool is_first = &lane == &graph.lanes[0];
        Stream *own = is_first ? stream : new Stream{stream->device, {}, {}, nullptr, false};
        if (!is_first) {
            streams.push_back(own);
            enqueue(own, [=] { return [=] { return *has_begun; }; });
        }
        for (const Work &work : lane) enqueue(own, work);
        ends.push_back(std::make_shared<bool>(false));
        enqueue_now(own, [end = ends.back()] { *end = true; });
    }
    for (const auto &end : ends) enqueue(stream, [=] { return [=] { return *end; }; });
    return SUCCESS;
}
int cuGraphExecDestroy(void *graph) { return delete static_cast<Graph *>(graph), SUCCESS; }

int cuEventCreate(void **event, unsigned) {
    if (int said = enter()) return said;
    if (int said = unsafe_in_captures()) return said;
    return *event = new Event{}, SUCCESS;
}
int cuEventRecord(void *handle, void *stream_handle) {
    if (int said = enter()) return said;
    Guard guard(everything);
    Stream *stream = used(stream_handle);
    if (stream->destroyed) return INVALID_HANDLE;
    auto record = std::make_shared<Record>(Record{false, 0, stream->capture});
    static_cast<Event *>(handle)->last = record;
    if (stream->capture) stream->capture->graph.records.push_back(record);
    enqueue_now(stream, [=] {
        record->reached = true;
        record->time = milliseconds();
    });
    return SUCCESS;
}
static bool is_open(const std::shared_ptr<Capture> &capture) {
    for (Stream *stream : streams) {
        if (stream->capture == capture) return true;
    }
    return false;
}
// The stream waits for the work that the event was recorded after at the time of this call.
int cuStreamWaitEvent(void *stream_handle, void *handle, unsigned) {
    Guard guard(everything);
    Stream *stream = used(stream_handle);
    Event *event = static_cast<Event *>(handle);
    if (stream->destroyed) return INVALID_HANDLE;
    if (failing_waits > 0) return failing_waits--, INVALID_VALUE;
    if (!event->last) return SUCCESS;
    std::shared_ptr<Capture> capture = event->last->capture;
    if (stream->capture && capture != stream->capture) return stream->capture->invalid = true, CAPTURE_ISOLATION;
    if (capture && !stream->capture && is_open(capture)) {
        stream->capture = capture;
        stream->lane = capture->graph.lanes.size();
        capture->graph.lanes.emplace_back();
    }
    auto record = event->last;
    enqueue(stream, [=] { return [=] { return record->reached; }; });
    return SUCCESS;
}
int cuEventQuery(void *handle) {
    Guard guard(everything);
    counts[LOOKS]++;
    if (int said = unsafe_in_captures()) return said;
    work_off();
    Event *event = static_cast<Event *>(handle);
    if (event->is_captured()) return CAPTURED_EVENT;
    if (current == broken) return ILLEGAL_ADDRESS;
    return event->is_pending() ? NOT_READY : SUCCESS;
}
int cuEventSynchronize(void *event) {
    int said;
    while ((said = cuEventQuery(event)) == NOT_READY) between_looks();
    return said;
}
int cuEventElapsedTime(float *elapsed, void *start, void *end) {
    Guard guard(everything);
    Event *first = static_cast<Event *>(start), *last = static_cast<Event *>(end);
    if (!first->last || !last->last) return INVALID_HANDLE;
    if (first->is_pending() || last->is_pending()) return NOT_READY;
    *elapsed = static_cast<float>(last->last->time - first->last->time);
    return SUCCESS;
}

// For tests: a kernel of the program's runs on a device until another is named (-1: none); work of
// a device no longer runs, and its streams report why; waits fail; a launch is refused; counters.
int fake_occupy(int device) { return occupied = device, 0; }
int fake_break(int device) { return broken = device, 0; }
int fake_fail_waits(int count) {
    Guard guard(everything);
    return failing_waits = count, 0;
}
int fake_refuse_launch(int after) { return refused_after = after, 0; }
int fake_count(int what) {
    Guard guard(everything);
    return static_cast<int>(counts[what]);
}

using Kernels = std::set<std::string>;

// The kernels of a cubin: each has a section.
static Kernels kernels_of(const char *image, const Elf64_Ehdr *header) {
    const auto *sections = reinterpret_cast<const Elf64_Shdr *>(image + header->e_shoff);
    const char *names = image + sections[header->e_shstrndx].sh_offset;
    Kernels kernels;
    for (int i = 0; i < header->e_shnum; i++) {
        std::string name = names + sections[i].sh_name;
        if (name.rfind(".text.", 0) == 0) kernels.insert(name.substr(6));
    }
    return kernels;
}

// Takes what a device of this capability takes: PTX, and cubins of its generation. Waits for all
// kernels that run there, as measured on an H200 (driver 580).
int cuModuleLoadData(void **module, const char *image) {
    wait_for_device();
    enum { CUDA = 190 };
    const auto *header = reinterpret_cast<const Elf64_Ehdr *>(image);
    Kernels kernels;
    if (!memcmp(image, ELFMAG, SELFMAG) && header->e_machine == CUDA) {
        int target = header->e_flags & 0xff;
        if (target / 10 != generation) return NO_BINARY_FOR_GPU;
        kernels = kernels_of(image, header);
    } else if (strstr(image, ".version")) {
        for (const char *at = image; (at = strstr(at, ".entry ")); at++)
            kernels.insert(std::string(at + 7, strcspn(at + 7, " (")));
    } else {
        return INVALID_IMAGE;
    }
    return *module = new Kernels(kernels), SUCCESS;
}
int cuModuleUnload(void *module) { return delete static_cast<Kernels *>(module), SUCCESS; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    if (!static_cast<Kernels *>(module)->count(name)) return NOT_FOUND;
    return *function = new std::string(name), SUCCESS;
}

}  // extern "C"

// Runs the kernels themselves: their threads run one after the other.
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
    if (int said = enter()) return said;
    if (refused_after >= 0 && refused_after-- == 0) return CAPTURE_IMPLICIT;
    const std::string &name = *static_cast<std::string *>(function);
    if (name.rfind("staged", 0) == 0)
        return enqueue(stream_of(stream, current), staged_work(name, *arguments, blocks)), SUCCESS;
    if (is_between_gpus(name))
        return enqueue(stream_of(stream, current), work_between_gpus(name, *arguments, blocks, threads)), SUCCESS;
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
