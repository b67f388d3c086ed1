/*
 * All collectives on device memory, in all kinds of streams; every element is checked.
 *
 *   device               takes the ranks that a launcher made, each of which has a GPU
 *   device threads SIZE  makes the ranks itself, as threads
 *
 * SPARK_CCL_BACKEND says what does the collectives.
 */
#ifdef __cplusplus
#define OF_THREAD thread_local
#else
#define OF_THREAD _Thread_local
#endif
#include "check.h"
#include "driver.h"

#include <pthread.h>

enum { COUNT = 1027, RANKS = 16, BYTES = COUNT * RANKS * 4 };

static OF_THREAD void *stream;
static OF_THREAD CUdeviceptr send_memory, recv_memory;
static OF_THREAD int32_t host[COUNT * RANKS];

static spark_ccl_options in_stream(void)
{
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.stream = stream;
    options.on_device = 1;
    return options;
}

static void *at(CUdeviceptr memory, int element)
{
    return (void *)(uintptr_t)(memory + (CUdeviceptr)element * 4);
}

/* The value of rank `owner` at a place. */
static int32_t value(int owner, int place)
{
    return owner * 100003 + place;
}

static int32_t sum_of(int place)
{
    return size * (size - 1) / 2 * 100003 + size * place;
}

/* This rank's values in one buffer, and nothing of use in the other; in the stream, without
 * waiting. */
static void fill(CUdeviceptr memory, int count, CUdeviceptr other)
{
    for (int i = 0; i < count; i++) {
        host[i] = value(rank, i);
    }
    require(cuMemcpyHtoDAsync_v2(memory, host, (size_t)count * 4, stream) == 0, "copying to the GPU");
    if (other != 0) {
        require(cuMemsetD8Async(other, 0xee, BYTES, stream) == 0, "setting memory");
    }
}

static void fetch(CUdeviceptr memory, int count)
{
    require(cuMemcpyDtoHAsync_v2(host, memory, (size_t)count * 4, stream) == 0, "copying from the GPU");
    SUCCEEDS(spark_ccl_stream_wait(comm, stream));
}

#define EACH(count, expected, what)                                                                \
    for (int i = 0; i < (count); i++) {                                                            \
        if (host[i] != (expected)) {                                                               \
            fprintf(stderr, "rank %d: %s: element %d is %d\n", rank, what, i, (int)host[i]);       \
            exit(1);                                                                               \
        }                                                                                          \
    }

static void check_reductions(void)
{
    spark_ccl_options options = in_stream();
    fill(send_memory, COUNT, recv_memory);
    SUCCEEDS(spark_ccl_all_reduce(comm, at(send_memory, 0), at(recv_memory, 0), COUNT, SPARK_CCL_INT32,
                                  SPARK_CCL_SUM, &options));
    fetch(recv_memory, COUNT);
    EACH(COUNT, sum_of(i), "all_reduce");

    fill(send_memory, COUNT, 0);
    SUCCEEDS(spark_ccl_all_reduce(comm, at(send_memory, 0), at(send_memory, 0), COUNT, SPARK_CCL_INT32,
                                  SPARK_CCL_MAX, &options));
    fetch(send_memory, COUNT);
    EACH(COUNT, value(size - 1, i), "all_reduce in place");

    fill(send_memory, COUNT, recv_memory);
    SUCCEEDS(spark_ccl_reduce(comm, at(send_memory, 0), rank == size - 1 ? at(recv_memory, 0) : NULL, COUNT,
                              SPARK_CCL_INT32, SPARK_CCL_SUM, size - 1, &options));
    fetch(recv_memory, COUNT);
    EACH(COUNT, rank == size - 1 ? sum_of(i) : (int32_t)0xeeeeeeee, "reduce");

    fill(send_memory, COUNT * size, recv_memory);
    SUCCEEDS(spark_ccl_reduce_scatter(comm, at(send_memory, 0), at(recv_memory, 0), COUNT, SPARK_CCL_INT32,
                                      SPARK_CCL_SUM, &options));
    fetch(recv_memory, COUNT);
    EACH(COUNT, sum_of(rank * COUNT + i), "reduce_scatter");

    const int32_t factor = rank + 2;
    int32_t factors = 0, products = 0;
    for (int p = 0; p < size; p++) {
        factors += p + 2;
        products += (p + 2) * value(p, 0);
    }
    options.factor = &factor;
    fill(send_memory, COUNT, recv_memory);
    SUCCEEDS(spark_ccl_all_reduce(comm, at(send_memory, 0), at(recv_memory, 0), COUNT, SPARK_CCL_INT32,
                                  SPARK_CCL_PRE_MUL_SUM, &options));
    fetch(recv_memory, COUNT);
    EACH(COUNT, products + factors * i, "all_reduce with factors");
}

static void check_copies(void)
{
    spark_ccl_options options = in_stream();
    fill(send_memory, COUNT, recv_memory);
    SUCCEEDS(spark_ccl_broadcast(comm, rank == 0 ? at(send_memory, 0) : NULL, at(recv_memory, 0), COUNT,
                                 SPARK_CCL_INT32, 0, &options));
    fetch(recv_memory, COUNT);
    EACH(COUNT, value(0, i), "broadcast");

    fill(send_memory, COUNT, recv_memory);
    SUCCEEDS(spark_ccl_all_gather(comm, at(send_memory, 0), at(recv_memory, 0), COUNT, SPARK_CCL_INT32, &options));
    fetch(recv_memory, COUNT * size);
    EACH(COUNT * size, value(i / COUNT, i % COUNT), "all_gather");

    fill(recv_memory + (CUdeviceptr)(rank * COUNT) * 4, COUNT, 0);
    SUCCEEDS(spark_ccl_all_gather(comm, at(recv_memory, rank * COUNT), at(recv_memory, 0), COUNT, SPARK_CCL_INT32,
                                  &options));
    fetch(recv_memory, COUNT * size);
    EACH(COUNT * size, value(i / COUNT, i % COUNT), "all_gather in place");

    fill(send_memory, COUNT, recv_memory);
    SUCCEEDS(spark_ccl_gather(comm, at(send_memory, 0), rank == 0 ? at(recv_memory, 0) : NULL, COUNT, SPARK_CCL_INT32,
                              0, &options));
    fetch(recv_memory, COUNT * size);
    EACH(COUNT * size, rank == 0 ? value(i / COUNT, i % COUNT) : (int32_t)0xeeeeeeee, "gather");

    fill(send_memory, COUNT * size, recv_memory);
    SUCCEEDS(spark_ccl_scatter(comm, rank == size - 1 ? at(send_memory, 0) : NULL, at(recv_memory, 0), COUNT,
                               SPARK_CCL_INT32, size - 1, &options));
    fetch(recv_memory, COUNT);
    EACH(COUNT, value(size - 1, rank * COUNT + i), "scatter");

    fill(send_memory, COUNT * size, recv_memory);
    SUCCEEDS(spark_ccl_all_to_all(comm, at(send_memory, 0), at(recv_memory, 0), COUNT, SPARK_CCL_INT32, &options));
    fetch(recv_memory, COUNT * size);
    EACH(COUNT * size, value(i / COUNT, rank * COUNT + i % COUNT), "all_to_all");
}

/* Rank p sends p + 1 elements to each. */
static void check_uneven(void)
{
    size_t sent[RANKS], received[RANKS];
    int count = 0, place = 0;
    for (int p = 0; p < size; p++) {
        sent[p] = (size_t)rank + 1;
        received[p] = (size_t)p + 1;
        count += p + 1;
    }
    spark_ccl_options options = in_stream();
    fill(send_memory, (rank + 1) * size, recv_memory);
    SUCCEEDS(spark_ccl_all_to_all_v(comm, at(send_memory, 0), sent, NULL, at(recv_memory, 0), received, NULL,
                                    SPARK_CCL_INT32, &options));
    fetch(recv_memory, count);
    for (int p = 0; p < size; p++) {
        for (int i = 0; i <= p; i++, place++) {
            require(host[place] == value(p, rank * (p + 1) + i), "all_to_all_v");
        }
    }
}

/* Around the ring, each rank sends first. */
static void check_messages(void)
{
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    spark_ccl_options options = in_stream();
    fill(send_memory, COUNT, recv_memory);
    SUCCEEDS(spark_ccl_group_start());
    SUCCEEDS(spark_ccl_send(comm, at(send_memory, 0), COUNT, SPARK_CCL_INT32, next, &options));
    SUCCEEDS(spark_ccl_recv(comm, at(recv_memory, 0), COUNT, SPARK_CCL_INT32, last, &options));
    SUCCEEDS(spark_ccl_group_end());
    fetch(recv_memory, COUNT);
    EACH(COUNT, value(last, i), "messages");
}

static void check_groups(void)
{
    spark_ccl_options options = in_stream();
    fill(send_memory, COUNT * 2, recv_memory);
    SUCCEEDS(spark_ccl_group_start());
    for (int half = 0; half < 2; half++) {
        SUCCEEDS(spark_ccl_all_reduce(comm, at(send_memory, half * COUNT), at(recv_memory, half * COUNT), COUNT,
                                      SPARK_CCL_INT32, SPARK_CCL_SUM, &options));
    }
    SUCCEEDS(spark_ccl_group_end());
    fetch(recv_memory, COUNT * 2);
    EACH(COUNT * 2, sum_of(i), "a group");

    /* A refused call fails its group, and nothing of the group is enqueued. */
    fill(send_memory, COUNT, recv_memory);
    SUCCEEDS(spark_ccl_group_start());
    SUCCEEDS(spark_ccl_all_reduce(comm, at(send_memory, 0), at(recv_memory, 0), COUNT, SPARK_CCL_INT32,
                                  SPARK_CCL_SUM, &options));
    REFUSED(spark_ccl_all_reduce(comm, at(send_memory, 0), at(recv_memory, 0), COUNT, SPARK_CCL_INT32,
                                 (spark_ccl_op)9, &options), "9");
    REFUSED(spark_ccl_group_end(), "9");
    fetch(recv_memory, COUNT);
    EACH(COUNT, (int32_t)0xeeeeeeee, "a group that is refused");
}

static void check_refusals(void)
{
    spark_ccl_options options = in_stream();
    void *send = at(send_memory, 0), *recv = at(recv_memory, 0);
    REFUSED(spark_ccl_all_reduce(comm, host, recv, 4, SPARK_CCL_INT32, SPARK_CCL_SUM, &options), "knows of");
    REFUSED(spark_ccl_all_reduce(comm, NULL, recv, 4, SPARK_CCL_INT32, SPARK_CCL_SUM, &options), "null");
    REFUSED(spark_ccl_barrier(comm, &options), "no data");
    spark_ccl_request request = 7;
    options.request = &request;
    REFUSED(spark_ccl_all_reduce(comm, send, recv, 4, SPARK_CCL_INT32, SPARK_CCL_SUM, &options), "request");
    require(request == SPARK_CCL_REQUEST_NULL, "a request of a call that is refused");
    options = in_stream();
    options.registered = 1;
    REFUSED(spark_ccl_all_reduce(comm, send, recv, 4, SPARK_CCL_INT32, SPARK_CCL_SUM, &options), "registered");
    options = in_stream();
    options.on_device = 0;
    options.stream = &options;
    REFUSED(spark_ccl_all_reduce(comm, host, host, 4, SPARK_CCL_INT32, SPARK_CCL_SUM, &options), "on_device");
    REFUSED(spark_ccl_device_free(comm, host), "begins at");
    REFUSED(spark_ccl_device_register(comm, host, SPARK_CCL_REGISTER_LOCAL, NULL), "begins at");
    /* Calls without elements, which all ranks enqueue. */
    options = in_stream();
    SUCCEEDS(spark_ccl_all_reduce(comm, NULL, NULL, 0, SPARK_CCL_INT32, SPARK_CCL_SUM, &options));
    SUCCEEDS(spark_ccl_stream_wait(comm, stream));
}

static void check_memory(void)
{
    spark_ccl_options options = in_stream();
    void *memory;
    int used = -1;
    SUCCEEDS(spark_ccl_device_alloc(comm, COUNT * 4, &memory));
    SUCCEEDS(spark_ccl_device_register(comm, memory, SPARK_CCL_REGISTER_LOCAL, &used));
    require(used == 0 || used == 1, "whether a registration is used");
    fill((CUdeviceptr)(uintptr_t)memory, COUNT, 0);
    SUCCEEDS(spark_ccl_all_reduce(comm, memory, memory, COUNT, SPARK_CCL_INT32, SPARK_CCL_SUM, &options));
    fetch((CUdeviceptr)(uintptr_t)memory, COUNT);
    EACH(COUNT, sum_of(i), "memory of the library's");
    SUCCEEDS(spark_ccl_device_free(comm, memory));
    REFUSED(spark_ccl_device_free(comm, memory), "begins at");
    SUCCEEDS(spark_ccl_device_free(comm, NULL));
}

/* Memory that is freed while a call waits for another rank: the call still uses it, and no other
 * may. */
static void check_free_in_use(void)
{
    spark_ccl_options options = in_stream();
    void *memory;
    char word = 0;
    SUCCEEDS(spark_ccl_device_alloc(comm, BYTES, &memory));
    fill((CUdeviceptr)(uintptr_t)memory, COUNT, recv_memory);
    for (int p = 1; rank == 0 && p < size; p++) {
        SUCCEEDS(spark_ccl_recv(comm, &word, 1, SPARK_CCL_INT8, p, NULL));
    }
    SUCCEEDS(spark_ccl_all_reduce(comm, memory, at(recv_memory, 0), COUNT, SPARK_CCL_INT32, SPARK_CCL_SUM, &options));
    SUCCEEDS(spark_ccl_device_free(comm, memory));
    REFUSED(spark_ccl_device_free(comm, memory), "begins at");
    if (rank != 0) {
        /* Rank 0 has not called yet. */
        REFUSED(spark_ccl_broadcast(comm, memory, memory, COUNT, SPARK_CCL_INT32, 0, &options), "was freed");
        SUCCEEDS(spark_ccl_send(comm, &word, 1, SPARK_CCL_INT8, 0, NULL));
    }
    fetch(recv_memory, COUNT);
    EACH(COUNT, sum_of(i), "memory that was freed in use");
}

static void check_all(void)
{
    check_reductions();
    check_copies();
    check_uneven();
    check_messages();
    check_groups();
    check_refusals();
    check_memory();
    check_free_in_use();
}

static int run(void)
{
    int device = -1;
    void *context, *own;
    SUCCEEDS(spark_ccl_comm_rank(comm, &rank));
    SUCCEEDS(spark_ccl_comm_size(comm, &size));
    require(size <= RANKS, "the number of ranks");
    SUCCEEDS(spark_ccl_comm_device(comm, &device));
    require(device >= 0, "a GPU");
    require(cuDevicePrimaryCtxRetain(&context, device) == 0 && cuCtxSetCurrent(context) == 0, "a context");
    require(cuMemAlloc_v2(&send_memory, BYTES) == 0 && cuMemAlloc_v2(&recv_memory, BYTES) == 0, "memory");
    require(cuStreamCreate(&own, 1) == 0, "a stream");
    void *const streams[] = {own, NULL, (void *)1, (void *)2};
    for (int i = 0; i < 4; i++) {
        stream = streams[i];
        check_all();
    }
    SUCCEEDS(spark_ccl_barrier(comm, NULL));
    require(cuMemFree_v2(send_memory) == 0 && cuMemFree_v2(recv_memory) == 0, "freeing memory");
    require(cuStreamDestroy_v2(own) == 0, "ending a stream");
    return leave();
}

/* For ranks that are threads. */
static spark_ccl_unique_id id;
static int threads;

static void *run_thread(void *number)
{
    const spark_ccl_setting settings[] = {{"SPARK_CCL_TIMEOUT", "30"}};
    SUCCEEDS(spark_ccl_comm_create(&id, (int)(intptr_t)number, threads, settings, 1, &comm));
    run();
    return NULL;
}

int main(int count, char **arguments)
{
    require(cuInit(0) == 0, "the driver");
    if (count < 3) {
        join();
        return run();
    }
    pthread_t made[RANKS];
    threads = atoi(arguments[2]);
    SUCCEEDS(spark_ccl_get_unique_id(&id));
    for (int i = 0; i < threads; i++) {
        require(pthread_create(&made[i], NULL, run_thread, (void *)(intptr_t)i) == 0, "a thread");
    }
    for (int i = 0; i < threads; i++) {
        require(pthread_join(made[i], NULL) == 0, "the end of a thread");
    }
    return 0;
}
