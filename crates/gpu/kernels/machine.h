// The functions that the protocols need of a GPU. In tests, threads of a host have them, and each thread plays all
// lanes of a warp.
#pragma once

#include "layout.h"

const u32 LANES = 32;

// The 16 bytes that one memory access of a lane moves.
struct Pair {
    u64 first;
    u64 second;
};

#ifdef __CUDACC__

#define DEVICE __device__ __forceinline__
// A function that is not inlined.
#define NOT_INLINED __device__ __noinline__
#define UNROLL _Pragma("unroll")
// Loops over ranks would be most of the code if they were unrolled.
#define ROLLED _Pragma("unroll 1")
// A loop within a session, over the slots of peers.
#define PEERS_AT_ONCE _Pragma("unroll AT_ONCE")
// With two ranks, the data of each are in registers, which only unrolled loops can index.
#define RANKS_AT_ONCE _Pragma("unroll (RANKS == 2 ? 2 : 1)")
#define WORDS_AT_ONCE _Pragma("unroll (RANKS == 2 ? 8 : 2)")

// The lanes that a thread plays.
const u32 HELD = 1;

// How many strands a channel between two ranks has, which is a power of two.
const u32 STRANDS = 256;
// A message of more batches is shared out among the sender's warps while they run.
const u32 DEALT_OUT = 8 * STRANDS;

// A wait looks at the clock and at the host's memory once in this number of polls, since a look at
// the host's memory takes longer than a poll.
const u32 POLLS = 1024;

DEVICE u32 lane_of(u32) { return threadIdx.x % LANES; }
DEVICE u32 cta() { return blockIdx.x; }
DEVICE u32 warp_of_cta() { return threadIdx.x / LANES; }
DEVICE u32 warps_of_cta() { return blockDim.x / LANES; }
DEVICE u32 ctas() { return gridDim.x; }
DEVICE u32 thread() { return threadIdx.x; }
DEVICE u32 threads() { return blockDim.x; }
// Whether any thread of the CTA says so. Orders all that the threads did before it before all that they do after it.
DEVICE bool any_thread(bool value) { return __syncthreads_or(value); }

// The value that a lane has.
DEVICE u32 from_lane(u32 value, u32 lane) { return __shfl_sync(~0u, value, lane); }
DEVICE bool any_lane(bool value) { return __any_sync(~0u, value); }
// The bits that are set in any lane.
DEVICE u64 bits_of_lanes(u64 value) {
    u64 high = __reduce_or_sync(~0u, (u32)(value >> 32));
    return high << 32 | __reduce_or_sync(~0u, (u32)value);
}
// Waits for all lanes of the warp, and orders all that they did before it before all that they do
// after it.
DEVICE void converge() { __syncwarp(); }

// Each half of a pair is read or written as a whole. So is a line (128 bytes that eight lanes access by the same
// instruction) within a GPU and over NVLink.
DEVICE Pair load_pair(const void* from) {
    Pair pair;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(pair.first), "=l"(pair.second)
                 : "l"(from)
                 : "memory");
    return pair;
}
DEVICE void store_pair(void* to, Pair pair) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(to), "l"(pair.first), "l"(pair.second)
                 : "memory");
}
// Loads a pair as a whole, both halves together.
DEVICE Pair load_whole(const void* from) {
    Pair pair;
    asm volatile("{ .reg .b128 pair; ld.relaxed.sys.global.b128 pair, [%2]; mov.b128 {%0, %1}, pair; }"
                 : "=l"(pair.first), "=l"(pair.second)
                 : "l"(from)
                 : "memory");
    return pair;
}
DEVICE void store_whole(void* to, Pair pair) {
    asm volatile("{ .reg .b128 pair; mov.b128 pair, {%1, %2}; st.relaxed.sys.global.b128 [%0], pair; }"
                 :
                 : "l"(to), "l"(pair.first), "l"(pair.second)
                 : "memory");
}
DEVICE Pair load_of_line(const void* from) { return load_pair(from); }
DEVICE void store_of_line(void* to, Pair pair) { store_pair(to, pair); }

DEVICE u32 load_word(const u32* from) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
DEVICE void store_word(u32* to, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" : : "l"(to), "r"(value) : "memory");
}
// Everything that was stored before the value was released is there for this thread.
DEVICE u64 acquire_long(const u64* from) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
DEVICE void store_long(u64* to, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(to), "l"(value) : "memory");
}
// Everything that this thread has stored before is there for all threads that see the value.
DEVICE void release_long(u64* to, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(to), "l"(value) : "memory");
}
// Everything that this thread has stored before is there for all threads that see its later
// `store_fenced`.
DEVICE void fence() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }
DEVICE void store_fenced(u64* to, u64 value) { store_long(to, value); }
DEVICE u32 exchange_word(u32* at, u32 value) { return atomicExch(at, value); }
// Adds one, and returns the value before.
DEVICE u64 count_up(u64* at) { return atomicAdd(at, 1ull); }
// As `count_up`; and everything that threads have stored before they counted is there for this
// thread.
DEVICE u64 count_up_in_order(u64* at) {
    u64 before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;"
                 : "=l"(before)
                 : "l"(at)
                 : "memory");
    return before;
}

// A GPU that can start a kernel before the one ahead of it in the stream has ended does so where the launch allows it:
// see collectives.cu. After the wait, that one has ended, and what it wrote is there; without such a launch, it has
// from the start.
DEVICE void wait_for_last_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

DEVICE u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
DEVICE void between_polls() {}

// A product that is rounded, even if a sum follows.
DEVICE float product(float a, float b) { return __fmul_rn(a, b); }
DEVICE double product(double a, double b) { return __dmul_rn(a, b); }

DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 as_bits(float value) { return __float_as_uint(value); }
DEVICE double as_double(u64 bits) { return __longlong_as_double(bits); }
DEVICE u64 as_bits(double value) { return __double_as_longlong(value); }

// NaN wins, and +0 is larger than -0.
DEVICE float larger_of(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}
DEVICE float smaller_of(float a, float b) {
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}

// The smaller value of each half, as signed integers.
DEVICE u32 smaller_halves(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 900
    u32 smaller;
    asm("min.s16x2 %0, %1, %2;" : "=r"(smaller) : "r"(a), "r"(b));
    return smaller;
#else
    int high = min((int)a >> 16, (int)b >> 16), low = min((int)(short)a, (int)(short)b);
    return (u32)high << 16 | (u16)low;
#endif
}
// The conversions that a GPU has, with the results of `Software`. A GPU's NaN is 0x7fff, which as an integer
// is larger than all that is positive.
template <class Software>
DEVICE float from_half(u16 half) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(half));
    return wide;
}
template <class Software>
DEVICE u32 to_halves(float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return smaller_halves(both, 0x7e007e00);
}
template <class Software>
DEVICE u32 to_brains(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return smaller_halves(both, 0x7fc07fc0);
}

#else

#include "host.h"

#endif
