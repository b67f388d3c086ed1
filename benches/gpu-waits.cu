// Which calls of CUDA return only once a kernel has ended that runs meanwhile: on the same GPU, or
// on another one of the process; and whether another thread can launch a kernel on the other GPU
// until then. nvcc -O3 -arch=native -o gpu-waits benches/gpu-waits.cu && ./gpu-waits A rank whose
// kernel waits for another rank of its process stops both, if a call of the driver keeps that one
// from its own kernel. Each call is made by itself, and while a kernel runs for 300 ms.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#define CHECK(call)                                                                          \
    if (cudaError_t error = (call)) {                                                        \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error)), exit(1); \
    }

using u64 = unsigned long long;

const u64 RUNS_FOR = 300000000; // nanoseconds
const size_t BYTES = 4 << 20;

__global__ void run(u64 nanoseconds) {
    u64 begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < nanoseconds);
}

// Kernels that are loaded by their first launch, as modules are loaded lazily.
template <int N> __global__ void unloaded(int *out) { *out = N; }

double milliseconds(const std::function<void()> &work) {
    auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// A call, and what comes before and after it while no kernel runs.
struct Call {
    std::string name;
    std::function<void(int)> before, call, after;
};

void *memory, *ordinary;
cudaStream_t stream;
cudaEvent_t event;
cudaGraph_t graph;
cudaGraphExec_t instance;

void nothing(int) {}

void capture(int) {
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run<<<1, 1, 0, stream>>>(0);
    CHECK(cudaStreamEndCapture(stream, &graph));
}

void map_ordinary(int) {
    ordinary = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
}

void unmap(int) { munmap(ordinary, BYTES); }

void first_launch(int round) {
    if (round == 0) unloaded<0><<<1, 1, 0, stream>>>((int *)memory);
    if (round == 1) unloaded<1><<<1, 1, 0, stream>>>((int *)memory);
    if (round == 2) unloaded<2><<<1, 1, 0, stream>>>((int *)memory);
    if (round == 3) unloaded<3><<<1, 1, 0, stream>>>((int *)memory);
    CHECK(cudaGetLastError());
}

std::vector<Call> calls() {
    auto device = [](int) { CHECK(cudaMalloc(&memory, BYTES)); };
    auto freed = [](int) { CHECK(cudaFree(memory)); };
    auto pinned = [](int) { CHECK(cudaHostAlloc(&memory, BYTES, cudaHostAllocPortable | cudaHostAllocMapped)); };
    auto unpinned = [](int) { CHECK(cudaFreeHost(memory)); };
    auto registered = [](int) { CHECK(cudaHostRegister(ordinary, BYTES, cudaHostRegisterPortable | cudaHostRegisterMapped)); };
    auto unregistered = [](int) { CHECK(cudaHostUnregister(ordinary)); };
    auto made = [](int) { CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); };
    auto unmade = [](int) { CHECK(cudaStreamDestroy(stream)); };
    auto with_device = [=](int round) { made(round), device(round); };
    auto without_device = [=](int round) { CHECK(cudaStreamSynchronize(stream)); freed(round), unmade(round); };
    // Also to and from pinned memory, of which the program may not know that it is the host's.
    auto to_gpu = [](int) { CHECK(cudaMemcpyAsync(memory, ordinary, BYTES, cudaMemcpyHostToDevice, stream)); };
    auto from_pinned = [](int) { CHECK(cudaMemcpyAsync(ordinary, memory, BYTES, cudaMemcpyDeviceToHost, stream)); };
    return {
        {"cudaMalloc", nothing, device, freed},
        {"cudaFree", device, freed, nothing},
        {"cudaHostAlloc", nothing, pinned, unpinned},
        {"cudaFreeHost", pinned, unpinned, nothing},
        {"cudaHostRegister", map_ordinary, registered, [=](int round) { unregistered(round), unmap(round); }},
        {"cudaHostUnregister", [=](int round) { map_ordinary(round), registered(round); }, unregistered, unmap},
        {"cudaMallocAsync", made, [](int) { CHECK(cudaMallocAsync(&memory, BYTES, stream)); },
         [=](int round) { CHECK(cudaFreeAsync(memory, stream)); unmade(round); }},
        {"cudaMemcpyAsync from ordinary memory", [=](int round) { map_ordinary(round), with_device(round); }, to_gpu,
         [=](int round) { without_device(round), unmap(round); }},
        {"cudaMemcpyAsync, ordinary to pinned memory", [=](int round) { map_ordinary(round), made(round), pinned(round); }, to_gpu,
         [=](int round) { CHECK(cudaStreamSynchronize(stream)); unpinned(round), unmade(round), unmap(round); }},
        {"cudaMemcpyAsync, pinned to ordinary memory", [=](int round) { map_ordinary(round), made(round), pinned(round); }, from_pinned,
         [=](int round) { CHECK(cudaStreamSynchronize(stream)); unpinned(round), unmade(round), unmap(round); }},
        {"first launch of a kernel", with_device, first_launch, without_device},
        {"cudaStreamCreate", nothing, made, unmade},
        {"cudaStreamDestroy", made, unmade, nothing},
        {"cudaEventCreate", nothing, [](int) { CHECK(cudaEventCreate(&event)); }, [](int) { CHECK(cudaEventDestroy(event)); }},
        {"cudaGraphInstantiate", [=](int round) { made(round), capture(round); },
         [](int) { CHECK(cudaGraphInstantiate(&instance, graph, 0)); },
         [=](int round) { CHECK(cudaGraphExecDestroy(instance)); CHECK(cudaGraphDestroy(graph)); unmade(round); }},
        {"cudaGraphLaunch, the first",
         [=](int round) { made(round), capture(round); CHECK(cudaGraphInstantiate(&instance, graph, 0)); },
         [](int) { CHECK(cudaGraphLaunch(instance, stream)); },
         [=](int round) {
             CHECK(cudaStreamSynchronize(stream));
             CHECK(cudaGraphExecDestroy(instance));
             CHECK(cudaGraphDestroy(graph));
             unmade(round);
         }},
    };
}

void launch_beside(double *took) {
    CHECK(cudaSetDevice(1));
    cudaStream_t own;
    CHECK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    usleep(30000);
    *took = milliseconds([&] {
        run<<<1, 1, 0, own>>>(0);
        CHECK(cudaGetLastError());
        CHECK(cudaStreamSynchronize(own));
    });
    CHECK(cudaStreamDestroy(own));
}

// Milliseconds of a call on GPU 0; meanwhile a kernel runs on the GPU `busy`, if that is one. If
// `launched` is there, it becomes how long another thread takes for a launch on GPU 1 that begins a
// little later.
double measure(const Call &call, int busy, int round, double *launched = nullptr) {
    cudaStream_t other;
    std::thread beside;
    CHECK(cudaSetDevice(0));
    call.before(round);
    if (busy >= 0) {
        CHECK(cudaSetDevice(busy));
        CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        run<<<1, 1, 0, other>>>(RUNS_FOR);
        CHECK(cudaGetLastError());
        CHECK(cudaSetDevice(0));
    }
    if (launched) beside = std::thread(launch_beside, launched);
    double took = milliseconds([&] { call.call(round); });
    if (launched) beside.join();
    if (busy >= 0) {
        CHECK(cudaSetDevice(busy));
        CHECK(cudaStreamSynchronize(other));
        CHECK(cudaStreamDestroy(other));
        CHECK(cudaSetDevice(0));
    }
    call.after(round);
    return took;
}

int main() {
    int gpus, driver, runtime;
    CHECK(cudaGetDeviceCount(&gpus));
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaRuntimeGetVersion(&runtime));
    printf("%d GPUs, driver for CUDA %d, runtime %d\n", gpus, driver, runtime);
    printf("| call | alone, ms | a kernel runs on its GPU | on another GPU | launch on GPU 1 meanwhile |\n");
    printf("| --- | ---: | ---: | ---: | ---: |\n");
    for (int gpu = gpus - 1; gpu >= 0; gpu--) {
        CHECK(cudaSetDevice(gpu));
        run<<<1, 1>>>(0);
        CHECK(cudaDeviceSynchronize());
    }
    for (const Call &call : calls()) {
        double launched = 0, alone = measure(call, -1, 0), same = measure(call, 0, 1);
        printf("| %s | %.2f | %.1f | ", call.name.c_str(), alone, same);
        if (gpus > 1) {
            double elsewhere = measure(call, 1, 2);
            measure(call, 0, 3, &launched);
            printf("%.1f | %.1f |\n", elsewhere, launched);
        } else {
            printf("no other GPU | |\n");
        }
    }
}
