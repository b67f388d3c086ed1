// What a call by way of the host consists of, on a GPU and a processor without this library: each
// leg on its own, in microseconds, median and 99th percentile. nvcc -O3 -arch=native -o gpu-legs
// benches/gpu-legs.cu && ./gpu-legs One thread polls as the proxy does. The clocks of GPU and
// processor are set by the exchange that takes the least time, so one way is exact to half of the
// difference between its directions.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                          \
    if (cudaError_t error = (call)) {                                                        \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error)), exit(1); \
    }

using u64 = unsigned long long;

const int EXCHANGES = 20000;
// A GPU that waits for longer gives up, in nanoseconds.
const u64 PATIENCE = 2000000000;

// Flags in pinned memory, each in lines of its own.
struct Flags {
    alignas(128) std::atomic<u64> bell;
    alignas(128) std::atomic<u64> answer;
};

// When something was seen, by the clock of the one that saw it, in nanoseconds.
struct Exchange {
    u64 rung, heard, answered, seen;
};

__device__ u64 clock_of_gpu() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ void release(void *to, u64 value) { asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory"); }

__device__ u64 acquire(const void *from) {
    u64 value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

// Rings, and waits for the answer, again and again; `pause` nanoseconds lie between an answer and
// the next bell.
__global__ void exchange(Flags *flags, Exchange *exchanges, int count, u64 pause) {
    for (int i = 0; i < count; i++) {
        u64 begin = clock_of_gpu();
        while (clock_of_gpu() - begin < pause) {}
        u64 rung = clock_of_gpu();
        release(&flags->bell, i + 1);
        while (acquire(&flags->answer) != i + 1) {
            if (clock_of_gpu() - begin > PATIENCE) return;
        }
        exchanges[i].seen = clock_of_gpu();
        exchanges[i].rung = rung;
    }
}

__global__ void nothing() {}

// One CTA's copy, and the time that it takes until the other processor may see it.
__global__ void copy(uint4 *to, const uint4 *from, size_t count, u64 *took) {
    __syncthreads();
    u64 begin = clock_of_gpu();
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) {
        uint4 word = __ldcv(from + i);
        __stwt(to + i, word);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        *took = clock_of_gpu() - begin;
    }
}

u64 clock_of_host() {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void print(const char *leg, std::vector<double> microseconds) {
    std::sort(microseconds.begin(), microseconds.end());
    size_t count = microseconds.size();
    printf("%-44s %8.2f %8.2f\n", leg, microseconds[count / 2], microseconds[count * 99 / 100]);
}

// Exchanges of a kernel with this thread.
std::vector<Exchange> exchanges(Flags *flags, int count, u64 pause) {
    Exchange *seen;
    CHECK(cudaMalloc(&seen, count * sizeof(Exchange)));
    std::vector<Exchange> all(count), of_gpu(count);
    flags->bell = flags->answer = 0;
    exchange<<<1, 1>>>(flags, seen, count, pause);
    for (int i = 0; i < count; i++) {
        u64 begin = clock_of_host();
        while (flags->bell.load(std::memory_order_acquire) != u64(i + 1)) {
            if (clock_of_host() - begin > PATIENCE) fprintf(stderr, "the GPU does not ring\n"), exit(1);
        }
        all[i].heard = clock_of_host();
        all[i].answered = clock_of_host();
        flags->answer.store(i + 1, std::memory_order_release);
    }
    CHECK(cudaMemcpy(of_gpu.data(), seen, count * sizeof(Exchange), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(seen));
    for (int i = 0; i < count; i++) all[i].rung = of_gpu[i].rung, all[i].seen = of_gpu[i].seen;
    return all;
}

void print_exchanges(const char *when, const std::vector<Exchange> &all) {
    auto trip = [](const Exchange &one) { return (one.seen - one.rung) - (one.answered - one.heard); };
    auto least = *std::min_element(all.begin(), all.end(), [&](auto &a, auto &b) { return trip(a) < trip(b); });
    // What the GPU's clock says when the host's says 0.
    double offset = (double(least.rung) + double(least.seen) - double(least.heard) - double(least.answered)) / 2;
    std::vector<double> there, back, both;
    for (auto &one : all) {
        there.push_back((double(one.heard) + offset - double(one.rung)) / 1000);
        back.push_back((double(one.seen) - double(one.answered) - offset) / 1000);
        both.push_back(trip(one) / 1000.);
    }
    char leg[80];
    snprintf(leg, sizeof leg, "%s: bell to processor", when), print(leg, there);
    snprintf(leg, sizeof leg, "%s: answer to kernel", when), print(leg, back);
    snprintf(leg, sizeof leg, "%s: both ways", when), print(leg, both);
}

// How long a kernel of a graph takes that does nothing.
void print_nodes() {
    const int NODES = 100;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaEvent_t begin, end;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < NODES; i++) nothing<<<1, 32, 0, stream>>>();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    std::vector<double> times;
    for (int i = 0; i < 200; i++) {
        float milliseconds;
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
        times.push_back(milliseconds * 1000 / NODES);
    }
    print("start and end of a kernel in a graph", times);
}

void print_copies() {
    const size_t MOST = 512 << 10;
    uint4 *device, *pinned;
    u64 *took;
    CHECK(cudaMalloc(&device, MOST));
    CHECK(cudaMallocHost(&pinned, MOST));
    CHECK(cudaMallocHost(&took, sizeof *took));
    for (size_t bytes : {16ul, 8ul << 10, 64ul << 10, MOST}) {
        for (bool is_put : {true, false}) {
            std::vector<double> times;
            for (int i = 0; i < 500; i++) {
                uint4 *to = is_put ? pinned : device, *from = is_put ? device : pinned;
                copy<<<1, 512>>>(to, from, bytes / 16, took);
                CHECK(cudaDeviceSynchronize());
                times.push_back(*took / 1000.);
            }
            char leg[80];
            snprintf(leg, sizeof leg, "%zu bytes %s pinned memory, one CTA", bytes, is_put ? "to" : "from");
            print(leg, times);
        }
    }
}

int main() {
    Flags *flags;
    CHECK(cudaHostAlloc(&flags, sizeof *flags, cudaHostAllocMapped));
    printf("%-44s %8s %8s\n", "leg", "median", "99 %");
    exchanges(flags, 1000, 0);
    print_exchanges("after 1 us", exchanges(flags, EXCHANGES, 1000));
    print_exchanges("after 0.5 ms", exchanges(flags, 1000, 500000));
    print_exchanges("after 60 ms", exchanges(flags, 30, 60000000));
    print_nodes();
    print_copies();
}
