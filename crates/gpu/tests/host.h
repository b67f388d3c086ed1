// A host's threads in place of a GPU's warps. Each thread plays all lanes of a warp, one after the
// other.
#pragma once

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <cassert>
#include <cstring>

#define DEVICE inline
#define NOT_INLINED inline
#define UNROLL
#define ROLLED
#define PEERS_AT_ONCE
#define RANKS_AT_ONCE
#define WORDS_AT_ONCE

const u32 HELD = LANES;
// Few, so that short messages go around all slots.
const u32 STRANDS = 4;
const u32 DEALT_OUT = 4 * STRANDS;
const u32 POLLS = 16;

// The warp that this thread plays, and how it pauses.
struct Place {
    u32 cta, warp, warps, ctas;
    // The state of a generator of random numbers.
    u64 random;
    // The thread sleeps at one of this many accesses to scratch memory, at random; never if 0.
    u32 pauses;
    // The limit of a sleep, in microseconds.
    u32 pause;
};
inline thread_local Place here;
// Whether a fence is behind all that this thread has stored for others.
inline thread_local bool is_fenced;

inline u32 lane_of(u32 held) { return held; }
inline u32 cta() { return here.cta; }
inline u32 warp_of_cta() { return here.warp; }
inline u32 warps_of_cta() { return here.warps; }
inline u32 ctas() { return here.ctas; }
// Where threads of a CTA wait for each other, one plays all of it.
inline u32 thread() { return 0; }
inline u32 threads() { return 1; }
inline bool any_thread(bool value) { return value; }
inline u32 from_lane(u32 value, u32) { return value; }
inline bool any_lane(bool value) { return value; }
inline u64 bits_of_lanes(u64 value) { return value; }
inline void converge() {}

inline u32 random_below(u32 limit) {
    here.random = here.random * 6364136223846793005ull + 1442695040888963407ull;
    return (u32)(here.random >> 33) % limit;
}
// Some accesses are late, so that ranks overtake each other in all places.
inline void pause_at_times() {
    if (here.pauses != 0 && random_below(here.pauses) == 0) {
        usleep(random_below(here.pause));
    }
}

inline u64 load(const void* from, int order) {
    auto* at = static_cast<const u64*>(from);
    return order == __ATOMIC_ACQUIRE ? __atomic_load_n(at, __ATOMIC_ACQUIRE)
                                     : __atomic_load_n(at, __ATOMIC_RELAXED);
}
// The halves of a pair are independent.
inline Pair load_pair(const void* from) {
    pause_at_times();
    u64 second = load(static_cast<const u64*>(from) + 1, __ATOMIC_RELAXED);
    pause_at_times();
    return {load(from, __ATOMIC_RELAXED), second};
}
inline void store_pair(void* to, Pair pair) {
    is_fenced = false;
    auto* at = static_cast<u64*>(to);
    pause_at_times();
    __atomic_store_n(at, pair.first, __ATOMIC_RELAXED);
    pause_at_times();
    __atomic_store_n(at + 1, pair.second, __ATOMIC_RELAXED);
}
// A line is written with its flag last, which releases the rest, and read from its end on: so the
// rest is at least as new as the flag.
inline Pair load_of_line(const void* from) {
    pause_at_times();
    u64 second = load(static_cast<const u64*>(from) + 1, __ATOMIC_ACQUIRE);
    return {load(from, __ATOMIC_ACQUIRE), second};
}
inline void store_of_line(void* to, Pair pair) {
    auto* at = static_cast<u64*>(to);
    pause_at_times();
    __atomic_store_n(at, pair.first, __ATOMIC_RELEASE);
    __atomic_store_n(at + 1, pair.second, __ATOMIC_RELEASE);
}
// The second half of a pair that is written at once has the flag, so it is written last, too.
inline Pair load_whole(const void* from) { return load_of_line(from); }
inline void store_whole(void* to, Pair pair) { store_of_line(to, pair); }

inline u32 load_word(const u32* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
inline void store_word(u32* to, u32 value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
inline u64 acquire_long(const u64* from) { return load(from, __ATOMIC_ACQUIRE); }
inline void store_long(u64* to, u64 value) {
    is_fenced = false;
    __atomic_store_n(to, value, __ATOMIC_RELAXED);
}
inline void release_long(u64* to, u64 value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
// ThreadSanitizer knows no fences, so `store_fenced` asserts that there was one.
inline void fence() { is_fenced = true; }
inline void store_fenced(u64* to, u64 value) {
    assert(is_fenced);
    release_long(to, value);
}
inline u32 exchange_word(u32* at, u32 value) {
    return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}
inline u64 count_up(u64* at) { return __atomic_fetch_add(at, 1, __ATOMIC_RELAXED); }
inline u64 count_up_in_order(u64* at) { return __atomic_fetch_add(at, 1, __ATOMIC_ACQ_REL); }

inline u64 nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000ull + (u64)now.tv_nsec;
}
// The kernels that wait may be many more than the processors, and most tests wait for something
// else: for a time limit, or for a process. So they sleep most of the time.
inline void between_polls() {
    static thread_local u32 polls;
    const timespec pause = {0, 20 * 1000};
    if (++polls % 16 == 0) nanosleep(&pause, nullptr);
    else sched_yield();
}

// Compiled without contraction.
inline float product(float a, float b) { return a * b; }
inline double product(double a, double b) { return a * b; }

template <class To, class From>
To bits_as(From from) {
    To to;
    static_assert(sizeof to == sizeof from, "");
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float as_float(u32 bits) { return bits_as<float>(bits); }
inline u32 as_bits(float value) { return bits_as<u32>(value); }
inline double as_double(u64 bits) { return bits_as<double>(bits); }
inline u64 as_bits(double value) { return bits_as<u64>(value); }

template <class Software>
float from_half(u16 half) {
    return Software::unpack(half);
}
template <class Software>
u32 to_halves(float low, float high) {
    return Software::pack(low) | (u32)Software::pack(high) << 16;
}
template <class Software>
u32 to_brains(float low, float high) {
    return to_halves<Software>(low, high);
}
