/*
 * What is said of device memory where there is none: without a GPU, and by a communicator that
 * knows none.
 */
#include "check.h"

/* Programs of the first version have as many bytes: members come at the end, and leave no padding
 * there. */
#ifndef __cplusplus
_Static_assert(offsetof(spark_ccl_options, registered) == 4 * sizeof(void *), "the first version's options");
_Static_assert(offsetof(spark_ccl_options, stream) == 5 * sizeof(void *), "the options behind them");
_Static_assert(sizeof(spark_ccl_options) == 8 * sizeof(void *), "the size of the options");
#endif

static void check_backend(const char *backend)
{
    const spark_ccl_setting settings[] = {{"SPARK_CCL_BACKEND", backend}};
    spark_ccl_comm *made = NULL;
    spark_ccl_unique_id id;
    SUCCEEDS(spark_ccl_get_unique_id(&id));
    spark_ccl_result result = spark_ccl_comm_create(&id, 0, 1, settings, 1, &made);
    if (result == SPARK_CCL_SUCCESS) {
        /* This machine has GPUs, so the communicator has the first one. */
        int device = -1;
        SUCCEEDS(spark_ccl_comm_device(made, &device));
        require(device == 0, "the first GPU");
        SUCCEEDS(spark_ccl_comm_destroy(made));
        return;
    }
    require(result == SPARK_CCL_SYSTEM && made == NULL, backend);
    const char *said = spark_ccl_last_error();
    require(strstr(said, "CUDA") != NULL || strstr(said, "libnccl") != NULL, "what is missing");
}

int main(void)
{
    float values[4] = {1, 2, 3, 4};
    void *memory = values;
    int device = 0;
    join();
    check_backend("engine");
    check_backend("nccl");
    check_backend("auto");
    SUCCEEDS(spark_ccl_comm_device(comm, &device));
    require(device == -1, "a communicator without a GPU");
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.on_device = 1;
    spark_ccl_result refused =
        spark_ccl_all_reduce(comm, values, values, 4, SPARK_CCL_FLOAT32, SPARK_CCL_SUM, &options);
    require(refused == SPARK_CCL_SYSTEM && strstr(spark_ccl_last_error(), "SPARK_CCL_BACKEND") != NULL,
            "a call on a device");
    require(spark_ccl_device_alloc(comm, 4, &memory) == SPARK_CCL_SYSTEM && memory == NULL, "memory of a device");
    require(spark_ccl_stream_wait(comm, NULL) == SPARK_CCL_SYSTEM, "waiting for a stream");
    /* Options of the first version's size, with arbitrary bytes behind them. */
    options.struct_size = offsetof(spark_ccl_options, stream);
    options.stream = values;
    SUCCEEDS(spark_ccl_all_reduce(comm, values, values, 4, SPARK_CCL_FLOAT32, SPARK_CCL_SUM, &options));
    for (int i = 0; i < 4; i++) {
        require(values[i] == (float)((i + 1) * size), "a sum");
    }
    return leave();
}
