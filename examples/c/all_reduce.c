/*
 * The shortest program: each rank has its number, and all get the sum. Start it with any launcher,
 * for instance mpirun -n 2 ./all_reduce
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
    spark_ccl_comm *comm = NULL;
    int rank = 0, size = 0;
    check(spark_ccl_comm_from_env(NULL, 0, &comm));
    check(spark_ccl_comm_rank(comm, &rank));
    check(spark_ccl_comm_size(comm, &size));

    float values[2] = {(float)rank, 1.0F};
    check(spark_ccl_all_reduce(comm, values, values, 2, SPARK_CCL_FLOAT32, SPARK_CCL_SUM, NULL));
    printf("rank %d of %d: %g, %g\n", rank, size, (double)values[0], (double)values[1]);

    check(spark_ccl_comm_finalize(comm));
    check(spark_ccl_comm_destroy(comm));
    return 0;
}
