// Fake GPUs for tests. Their memory is host memory, and work in their streams runs when some thread
// queries or waits for a stream. All of it belongs to one process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// Between looks at what a thread waits for. Most tests wait for something else: for a time limit,
// or for a process. So threads sleep most of the time.
inline void between_looks() {
    static thread_local unsigned looks;
    if (++looks % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
    else std::this_thread::yield();
}

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    NO_DEVICE = 100,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_SUPPORTED = 801,
    OUT_OF_MEMORY = 2,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
};

// Does something, if it can be done now; returns whether it was done.
using Step = std::function<bool()>;
// Creates the step, anew for each launch of a graph.
using Work = std::function<Step()>;

struct Record;

struct Graph {
    // The work of each stream that was captured; first that of the one whose capture was begun.
    std::vector<std::vector<Work>> lanes;
    // The events between them.
    std::vector<std::shared_ptr<Record>> records;
};

// A graph that is being captured, by one stream or by several.
struct Capture {
    Graph graph;
    uint64_t id;
    int mode;
    std::thread::id thread;
    // Something was done that CUDA does not allow during a capture.
    bool invalid;
};

struct Stream {
    int device;
    // The thread that created it.
    std::thread::id maker;
    std::deque<Step> steps;
    std::shared_ptr<Capture> capture;
    bool destroyed;
    // Of the graph that it captures.
    size_t lane = 0;
    // Whether it synchronizes with the default stream.
    bool blocking = false;
};

// Protects everything below.
extern std::recursive_mutex everything;
using Guard = std::lock_guard<std::recursive_mutex>;

// The device of this thread's current context; NO_DEVICE_IS_CURRENT without one.
enum { NO_DEVICE_IS_CURRENT = -1 };
extern thread_local int current;
// For tests: how often this thread has set its context, or asked about a stream or an address.
extern thread_local int asked;
// The major number of the GPUs' compute capability.
extern std::atomic<int> generation;

int device_count();
// The memory of each.
size_t device_bytes();

// The counters that tests read, by index.
enum Count { LOOKS, STRANGERS, MISUSES, BLOCKS, REGISTRATIONS, SETTLED, COUNTS };
extern long counts[COUNTS];

// A call that is not allowed during captures. Unless the calling thread is in relaxed mode, it
// fails if a capture in global mode or this thread's own capture in thread-local mode is open, and
// invalidates it.
int unsafe_in_captures();
// The stream for a handle of the driver's API, in which 0 and 1 are the default stream of the
// current device.
Stream *stream_of(void *handle, int device);
// Memory of a device from an address on; it is none any more with 0 bytes.
void set_memory(uint64_t start, size_t bytes, int device);
// Enqueues work in a stream, or in the graph that the stream captures.
void enqueue(Stream *stream, Work work);
// What the kernels do that go by way of the host, on this number of CTAs.
Work staged_work(const std::string &kernel, const void *arguments, unsigned ctas);
// Memory of the host for a device; none where it is refused: see `fake_refuse_slots`.
void *pinned_memory(int device, size_t bytes);
// Takes a while, and ends the refusal, if that is to last until then: `fake_refuse_until_freed`.
void pinned_memory_is_freed(int device);
// What the kernels of slots do.
Work slots_work(const std::string &kernel, const void *arguments, unsigned ctas);
// Threads play the warps of a kernel.
Work by_threads(const std::function<void()> &kernel, unsigned ctas, unsigned warps);
// Whether a kernel is one of those between GPUs, or of slots, and what it does on a grid.
bool is_between_gpus(const std::string &kernel);
Work work_between_gpus(const std::string &kernel, const void *arguments, unsigned ctas, unsigned threads);
// Enqueues work that can run as soon as all work before it has run.
void enqueue_now(Stream *stream, std::function<void()> action);
