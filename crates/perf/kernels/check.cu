// Fills memory for a checked run, and counts wrong results, without a copy to the host.
//
// Values and expected results repeat after `period` elements. Each block processes every
// gridDim.x-th period of the range, so an element's index in the period needs no division.
//
// It uses no headers of the CUDA toolkit: crates/cuda/kernels/build.sh compiles it.

typedef unsigned long long u64;

template <typename T>
__device__ void repeat(T* out, u64 len, const T* pattern, u64 period) {
    for (u64 start = blockIdx.x * period; start < len; start += gridDim.x * period) {
        u64 end = len - start < period ? len - start : period;
        for (u64 at = threadIdx.x; at < end; at += blockDim.x) {
            out[start + at] = pattern[at];
        }
    }
}

// Adds to `wrong` the number of elements that differ from the pattern by more than `tolerance`,
// with the bits of both taken as unsigned integers.
template <typename T>
__device__ void count(const T* got, u64 len, const T* pattern, u64 period, T tolerance, u64* wrong) {
    u64 found = 0;
    for (u64 start = blockIdx.x * period; start < len; start += gridDim.x * period) {
        u64 end = len - start < period ? len - start : period;
        for (u64 at = threadIdx.x; at < end; at += blockDim.x) {
            T a = got[start + at];
            T b = pattern[at];
            T apart = a > b ? a - b : b - a;
            found += apart > tolerance;
        }
    }
    if (found > 0) {
        atomicAdd(wrong, found);
    }
}

#define KERNELS(bits, T)                                                                          \
    extern "C" __global__ void repeat_##bits(T* out, u64 len, const T* pattern, u64 period) {     \
        repeat<T>(out, len, pattern, period);                                                     \
    }                                                                                             \
    extern "C" __global__ void count_##bits(const T* got, u64 len, const T* pattern, u64 period,  \
                                            u64 tolerance, u64* wrong) {                          \
        count<T>(got, len, pattern, period, (T)tolerance, wrong);                                 \
    }

KERNELS(8, unsigned char)
KERNELS(16, unsigned short)
KERNELS(32, unsigned int)
KERNELS(64, unsigned long long)
