/*
 * What a forked child has inherited is an error there, also when it has made the same things of its
 * own.
 */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#define TYPE SPARK_CCL_INT32

/* A communicator of one rank. */
static spark_ccl_comm *alone(void)
{
    spark_ccl_unique_id id;
    spark_ccl_comm *made = NULL;
    SUCCEEDS(spark_ccl_get_unique_id(&id));
    SUCCEEDS(spark_ccl_comm_create(&id, 0, 1, NULL, 0, &made));
    return made;
}

static spark_ccl_request start(spark_ccl_comm *in, int32_t *value)
{
    spark_ccl_request request = SPARK_CCL_REQUEST_NULL;
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.request = &request;
    SUCCEEDS(spark_ccl_all_reduce(in, value, value, 1, TYPE, SPARK_CCL_SUM, &options));
    return request;
}

static int child(spark_ccl_request inherited)
{
    int32_t value = 1;
    int done = -1;
    spark_ccl_request copy = inherited;
    REFUSED(spark_ccl_barrier(comm, NULL), "forked");
    spark_ccl_comm *own = alone();
    spark_ccl_request request = start(own, &value);
    require(own != comm && request != inherited, "handles that the parent has, too");
    REFUSED(spark_ccl_barrier(comm, NULL), "forked");
    REFUSED(spark_ccl_comm_destroy(comm), "forked");
    REFUSED(spark_ccl_test(&copy, &done), "forked");
    require(done == 1 && copy == SPARK_CCL_REQUEST_NULL, "nothing to wait for");
    SUCCEEDS(spark_ccl_wait(&request));
    REFUSED(spark_ccl_wait(&inherited), "forked");
    SUCCEEDS(spark_ccl_comm_destroy(own));
    return 0;
}

int main(void)
{
    int32_t value = 1;
    join();
    spark_ccl_request request = start(comm, &value);
    pid_t forked = fork();
    require(forked >= 0, "fork");
    if (forked == 0) {
        _exit(child(request));
    }
    int status = -1;
    require(waitpid(forked, &status, 0) == forked && status == 0, "the child failed");
    SUCCEEDS(spark_ccl_wait(&request));
    require(value == size, "a sum");
    return leave();
}
