// GPUs that are none, for tests: their memory is the host's, and what is enqueued in their streams is
// done by whoever looks at one of them. All of it is one process's.
#pragma once

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

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    NO_DEVICE = 100,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    INVALID_HANDLE = 400,
    OUT_OF_MEMORY = 2,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
};

// Does something, if it can be done now; says whether it was.
using Step = std::function<bool()>;
// Makes a step, anew for each launch of a graph.
using Work = std::function<Step()>;

using Graph = std::vector<Work>;

// A graph that is being captured.
struct Capture {
    std::unique_ptr<Graph> graph;
    int mode;
    std::thread::id thread;
    // Something was done that CUDA does not allow meanwhile.
    bool invalid;
};

struct Stream {
    int device;
    // The thread that made it.
    std::thread::id maker;
    std::deque<Step> steps;
    std::unique_ptr<Capture> capture;
    bool destroyed;
};

// Protects all that follows.
extern std::recursive_mutex everything;
using Guard = std::lock_guard<std::recursive_mutex>;

// The device of this thread's current context.
extern thread_local int current;

int device_count();

// What tests ask for, by its number.
enum Count { LOOKS, STRANGERS, MISUSES, BLOCKS, REGISTRATIONS, COUNTS };
extern long counts[COUNTS];

// What a thread must not do during captures of the strict kind, its own or another's, unless it is relaxed: they end.
int unsafe_in_captures();
// A handle as the driver's API has it, where 0 is the default stream of the current device.
Stream *stream_of(void *handle, int device);
// Puts work into a stream, or into the graph that the stream captures.
void enqueue(Stream *stream, Work work);
// Work that can be done as soon as it is its turn.
void enqueue_now(Stream *stream, std::function<void()> action);
