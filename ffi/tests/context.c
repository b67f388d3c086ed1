/*
 * No function changes which of CUDA's contexts is current in the thread that calls it, whether that
 * is another device's, or none. One rank, on device 0 of two: SPARK_CCL_RANK=0 and
 * SPARK_CCL_SIZE=1. A test checks that every function is called here.
 *
 * SPARK_CCL_BACKEND says what does the collectives.
 */
#include "check.h"
#include "driver.h"

#include <stdint.h>

enum { COUNT = 1000 };

/* The context that is current in this thread. */
static void *own;

static spark_ccl_result unnoticed(spark_ccl_result result, const char *call)
{
    void *now = &now;
    require(cuCtxGetCurrent(&now) == 0 && now == own, call);
    return result;
}

#define CALL(call) SUCCEEDS((cuCtxSetCurrent(own), unnoticed((call), #call)))

static spark_ccl_options on_device(void)
{
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.on_device = 1;
    return options;
}

static void log_nothing(const char *line, void *data)
{
    (void)line, (void)data;
}

static void call_what_enqueues(void *send, void *recv)
{
    const spark_ccl_options options = on_device();
    CALL(spark_ccl_all_reduce(comm, send, recv, COUNT, SPARK_CCL_INT32, SPARK_CCL_SUM, &options));
    CALL(spark_ccl_reduce(comm, send, recv, COUNT, SPARK_CCL_INT32, SPARK_CCL_SUM, 0, &options));
    CALL(spark_ccl_broadcast(comm, send, recv, COUNT, SPARK_CCL_INT32, 0, &options));
    CALL(spark_ccl_all_gather(comm, send, recv, COUNT, SPARK_CCL_INT32, &options));
    CALL(spark_ccl_reduce_scatter(comm, send, recv, COUNT, SPARK_CCL_INT32, SPARK_CCL_SUM,
                                  &options));
    CALL(spark_ccl_gather(comm, send, recv, COUNT, SPARK_CCL_INT32, 0, &options));
    CALL(spark_ccl_scatter(comm, send, recv, COUNT, SPARK_CCL_INT32, 0, &options));
    CALL(spark_ccl_all_to_all(comm, send, recv, COUNT, SPARK_CCL_INT32, &options));
    const size_t counts[] = {COUNT}, begins[] = {0};
    CALL(spark_ccl_all_to_all_v(comm, send, counts, begins, recv, counts, begins, SPARK_CCL_INT32,
                                &options));
    CALL(spark_ccl_group_start());
    CALL(spark_ccl_send(comm, send, COUNT, SPARK_CCL_INT32, 0, &options));
    CALL(spark_ccl_recv(comm, recv, COUNT, SPARK_CCL_INT32, 0, &options));
    CALL(spark_ccl_group_end());
    CALL(spark_ccl_stream_wait(comm, NULL));
}

static void call_what_has_requests(void)
{
    int32_t values[1] = {7};
    spark_ccl_request requests[4];
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    for (int i = 0; i < 4; i++) {
        options.request = &requests[i];
        CALL(spark_ccl_barrier(comm, &options));
    }
    int done = 0;
    CALL(spark_ccl_wait(&requests[0]));
    CALL(spark_ccl_test(&requests[1], &done));
    CALL(spark_ccl_request_free(&requests[1]));
    size_t index = 0;
    CALL(spark_ccl_wait_any(requests + 2, 2, &index));
    CALL(spark_ccl_wait_all(requests + 2, 2));
    CALL(spark_ccl_all_reduce(comm, values, values, 1, SPARK_CCL_INT32, SPARK_CCL_SUM, NULL));
    size_t count = 0;
    spark_ccl_dtype dtype;
    int there = 0;
    CALL(spark_ccl_probe(comm, 0, &count, &dtype, &there));
}

static void call_all(void)
{
    spark_ccl_unique_id id;
    char text[SPARK_CCL_UNIQUE_ID_TEXT];
    const spark_ccl_setting settings[] = {{"SPARK_CCL_DEVICE", "0"}, {"SPARK_CCL_TUNING", "off"}};
    CALL(spark_ccl_get_unique_id(&id));
    CALL(spark_ccl_unique_id_to_text(&id, text, sizeof text));
    CALL(spark_ccl_unique_id_from_text(text, &id));
    CALL(spark_ccl_comm_create(&id, 0, 1, settings, 2, &comm));
    int device = -1;
    CALL(spark_ccl_comm_rank(comm, &rank));
    CALL(spark_ccl_comm_size(comm, &size));
    CALL(spark_ccl_comm_device(comm, &device));
    require(device == 0, "the device");
    CALL(spark_ccl_comm_set_timeout(comm, 30000));

    void *send, *recv, *shared;
    int used;
    CALL(spark_ccl_device_alloc(comm, COUNT * 4, &send));
    CALL(spark_ccl_device_alloc(comm, COUNT * 4, &recv));
    CALL(spark_ccl_device_register(comm, send, 0, &used));
    CALL(spark_ccl_alloc(comm, COUNT, &shared));
    call_what_enqueues(send, recv);
    call_what_has_requests();
    CALL(spark_ccl_device_free(comm, send));
    CALL(spark_ccl_free(comm, shared));
    CALL(spark_ccl_comm_check(comm));

    spark_ccl_comm *all = comm, *split, *rest, *again;
    CALL(spark_ccl_comm_split(all, 0, 0, &split));
    CALL(spark_ccl_comm_abort(split, "a test"));
    CALL(spark_ccl_comm_shrink(split, NULL, 0, &rest));
    CALL(spark_ccl_comm_destroy(split));
    CALL(spark_ccl_comm_abort(rest, "a test"));
    CALL(spark_ccl_comm_recover(rest, &again));
    CALL(spark_ccl_comm_destroy(rest));
    CALL(spark_ccl_comm_destroy(again));
    CALL(spark_ccl_comm_finalize(all));
    CALL(spark_ccl_comm_destroy(all));

    CALL(spark_ccl_get_unique_id(&id));
    CALL(spark_ccl_unique_id_to_text(&id, text, sizeof text));
    require(setenv("SPARK_CCL_UNIQUE_ID", text, 1) == 0, "the environment");
    CALL(spark_ccl_comm_from_env(settings, 2, &comm));
    CALL(spark_ccl_comm_destroy(comm));
}

int main(void)
{
    void *contexts[2] = {NULL, NULL};
    require(cuInit(0) == 0, "the driver");
    require(cuDevicePrimaryCtxRetain(&contexts[0], 1) == 0, "the context of device 1");
    CALL(spark_ccl_set_log(log_nothing, NULL, NULL));
    require(spark_ccl_version() > 0 && spark_ccl_last_error() != NULL, "the version, and an error");
    require(spark_ccl_result_string(SPARK_CCL_SUCCESS) != NULL, "a result");
    for (int i = 0; i < 2; i++) {
        own = contexts[i];
        call_all();
    }
    return 0;
}
