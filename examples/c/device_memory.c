/*
 * Sums vectors in the memory of GPUs, one for each rank, in a stream that goes on with the next
 * work by itself.
 *
 *   cc device_memory.c -o device_memory -lspark_ccl -lcuda       (cuda.h comes with CUDA's toolkit)
 *   torchrun --nproc-per-node 2 --no-python ./device_memory
 *
 * SPARK_CCL_BACKEND says what does the collectives: nccl, engine, or auto, which is the default
 * here.
 */
#include <cuda.h>
#include <spark_ccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1 << 20 };

static void check(spark_ccl_result result)
{
    if (result != SPARK_CCL_SUCCESS) {
        fprintf(stderr, "%s\n", spark_ccl_last_error());
        exit(1);
    }
}

static void check_cuda(CUresult result)
{
    const char *text = "an unknown error";
    if (result != CUDA_SUCCESS) {
        cuGetErrorString(result, &text);
        fprintf(stderr, "CUDA: %s\n", text);
        exit(1);
    }
}

int main(void)
{
    /* Where the environment names a backend, that one is taken. */
    const spark_ccl_setting backend = {"SPARK_CCL_BACKEND", "auto"};
    spark_ccl_comm *comm;
    check(spark_ccl_comm_from_env(&backend, getenv("SPARK_CCL_BACKEND") == NULL, &comm));
    int rank, size, device;
    check(spark_ccl_comm_rank(comm, &rank));
    check(spark_ccl_comm_size(comm, &size));
    check(spark_ccl_comm_device(comm, &device));

    CUcontext context;
    CUstream stream;
    check_cuda(cuInit(0));
    check_cuda(cuDevicePrimaryCtxRetain(&context, device));
    check_cuda(cuCtxSetCurrent(context));
    check_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void *memory;
    check(spark_ccl_device_alloc(comm, COUNT * sizeof(float), &memory));

    float *values = malloc(COUNT * sizeof(float));
    if (values == NULL) {
        return 1;
    }
    for (int i = 0; i < COUNT; i++) {
        values[i] = (float)(i % 1000 + rank);
    }
    /* All of this is in the stream, in this order; the program waits once, at the end. */
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.stream = stream;
    options.on_device = 1;
    check_cuda(cuMemcpyHtoDAsync((CUdeviceptr)(size_t)memory, values, COUNT * sizeof(float), stream));
    check(spark_ccl_all_reduce(comm, memory, memory, COUNT, SPARK_CCL_FLOAT32, SPARK_CCL_SUM, &options));
    check_cuda(cuMemcpyDtoHAsync(values, (CUdeviceptr)(size_t)memory, COUNT * sizeof(float), stream));
    /* Unlike cuStreamSynchronize, this says if the call has failed. */
    check(spark_ccl_stream_wait(comm, stream));

    for (int i = 0; i < COUNT; i++) {
        if (values[i] != (float)(i % 1000 * size + size * (size - 1) / 2)) {
            fprintf(stderr, "rank %d: element %d is %g\n", rank, i, values[i]);
            return 1;
        }
    }
    printf("rank %d of %d: %d elements are right on device %d\n", rank, size, COUNT, device);
    free(values);
    check(spark_ccl_device_free(comm, memory));
    check_cuda(cuStreamDestroy(stream));
    check(spark_ccl_comm_finalize(comm));
    check(spark_ccl_comm_destroy(comm));
    check_cuda(cuDevicePrimaryCtxRelease(device));
    return 0;
}
