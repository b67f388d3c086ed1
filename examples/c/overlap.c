/*
 * Gradients of layers are averaged while the next layer is computed: calls are started, and waited
 * for at the end.
 */
#include <spark_ccl.h>

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 8, WIDTH = 100000 };

static float gradients[LAYERS][WIDTH];

static void check(spark_ccl_result result)
{
    if (result != SPARK_CCL_SUCCESS) {
        fprintf(stderr, "%s\n", spark_ccl_last_error());
        exit((int)result);
    }
}

static void compute(int layer, int rank)
{
    for (int i = 0; i < WIDTH; i++) {
        gradients[layer][i] = (float)(layer + i % 10 + rank);
    }
}

int main(void)
{
    /* A thread of the library's goes on with what is started. */
    const spark_ccl_setting settings[] = {{"SPARK_CCL_PROGRESS_THREAD", "1"}};
    spark_ccl_comm *comm = NULL;
    int rank = 0, size = 0;
    check(spark_ccl_comm_from_env(settings, 1, &comm));
    check(spark_ccl_comm_rank(comm, &rank));
    check(spark_ccl_comm_size(comm, &size));

    spark_ccl_request requests[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++) {
        compute(layer, rank);
        spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
        options.request = &requests[layer];
        options.name = "gradients";
        check(spark_ccl_all_reduce(comm, gradients[layer], gradients[layer], WIDTH,
                                   SPARK_CCL_FLOAT32, SPARK_CCL_AVG, &options));
    }
    check(spark_ccl_wait_all(requests, LAYERS));
    printf("rank %d of %d: %d layers averaged; the last begins with %g\n", rank, size, LAYERS,
           (double)gradients[LAYERS - 1][0]);

    check(spark_ccl_comm_finalize(comm));
    check(spark_ccl_comm_destroy(comm));
    return 0;
}
