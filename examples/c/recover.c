/*
 * A rank dies; the others hear which one, and go on without it.
 */
#include <spark_ccl.h>

#include <stdio.h>
#include <stdlib.h>

static void check(spark_ccl_result result)
{
    if (result != SPARK_CCL_SUCCESS) {
        fprintf(stderr, "%s\n", spark_ccl_last_error());
        exit((int)result);
    }
}

int main(void)
{
    spark_ccl_comm *comm = NULL, *rest = NULL;
    int rank = 0, size = 0;
    check(spark_ccl_comm_from_env(NULL, 0, &comm));
    check(spark_ccl_comm_rank(comm, &rank));
    check(spark_ccl_comm_size(comm, &size));
    if (rank == size - 1) {
        /* Without a goodbye. */
        _Exit(0);
    }

    double value = rank;
    spark_ccl_result result;
    do {
        result = spark_ccl_all_reduce(comm, &value, &value, 1, SPARK_CCL_FLOAT64, SPARK_CCL_MAX, NULL);
    } while (result == SPARK_CCL_SUCCESS);
    if (result != SPARK_CCL_REMOTE) {
        check(result);
    }
    printf("rank %d: %s\n", rank, spark_ccl_last_error());

    check(spark_ccl_comm_recover(comm, &rest));
    check(spark_ccl_comm_destroy(comm));
    check(spark_ccl_comm_rank(rest, &rank));
    check(spark_ccl_comm_size(rest, &size));
    check(spark_ccl_barrier(rest, NULL));
    printf("rank %d of %d goes on\n", rank, size);
    check(spark_ccl_comm_finalize(rest));
    check(spark_ccl_comm_destroy(rest));
    return 0;
}
