/*
 * Groups: calls that fail within one, calls that have no place there, and groups that nobody ends.
 * Two ranks.
 */
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define TYPE SPARK_CCL_INT32

static int other;

/* The first failure is the group's, in the order of calls; the others are done all the same. */
static void failures(void)
{
    int32_t own[2] = {rank, 10 + rank}, got[2] = {-1, -1};
    SUCCEEDS(spark_ccl_group_start());
    SUCCEEDS(spark_ccl_recv(comm, &got[0], 1, TYPE, other, NULL));
    SUCCEEDS(spark_ccl_group_start());
    REFUSED(spark_ccl_send(comm, &own[0], 1, TYPE, 17, NULL), "destination is rank 17");
    REFUSED(spark_ccl_recv(comm, NULL, 1, TYPE, other, NULL), "null");
    SUCCEEDS(spark_ccl_group_end());
    SUCCEEDS(spark_ccl_send(comm, &own[0], 1, TYPE, other, NULL));
    REFUSED(spark_ccl_group_end(), "destination is rank 17");
    require(got[0] == other, "a message beside calls that have failed");

    SUCCEEDS(spark_ccl_group_start());
    SUCCEEDS(spark_ccl_recv(comm, &got[1], 1, TYPE, other, NULL));
    SUCCEEDS(spark_ccl_send(comm, &own[1], 1, TYPE, other, NULL));
    SUCCEEDS(spark_ccl_group_end());
    require(got[1] == 10 + other, "a group after one that has failed");
    REFUSED(spark_ccl_group_end(), "no group is open");
}

/* Functions that wait for other ranks themselves are refused, and the group goes on. */
static void calls_that_wait(void)
{
    const char *word = "within a group";
    spark_ccl_comm *part = NULL, *none = comm;
    spark_ccl_unique_id id;
    void *memory = comm;
    int32_t sum = rank + 1;
    SUCCEEDS(spark_ccl_comm_split(comm, 0, 0, &part));
    SUCCEEDS(spark_ccl_get_unique_id(&id));
    SUCCEEDS(spark_ccl_group_start());
    SUCCEEDS(spark_ccl_all_reduce(part, &sum, &sum, 1, TYPE, SPARK_CCL_SUM, NULL));
    REFUSED(spark_ccl_comm_create(&id, 0, 1, NULL, 0, &none), word);
    require(none == NULL, "no communicator");
    REFUSED(spark_ccl_comm_from_env(NULL, 0, &none), word);
    REFUSED(spark_ccl_comm_split(comm, 0, 0, &none), word);
    REFUSED(spark_ccl_comm_recover(comm, &none), word);
    REFUSED(spark_ccl_comm_shrink(comm, NULL, 0, &none), word);
    REFUSED(spark_ccl_alloc(comm, 8, &memory), word);
    require(memory == NULL, "no memory");
    REFUSED(spark_ccl_comm_finalize(comm), word);
    SUCCEEDS(spark_ccl_comm_check(part));
    /* The communicator stays until the group's call is done. */
    SUCCEEDS(spark_ccl_comm_destroy(part));
    REFUSED(spark_ccl_barrier(part, NULL), "ended");
    REFUSED(spark_ccl_group_end(), "ended");
    require(sum == 3, "a sum in a communicator that was destroyed meanwhile");
}

/* A call with a request is not the group's. */
static void requests(void)
{
    int32_t sum = rank + 1, product = rank + 2;
    spark_ccl_request request = SPARK_CCL_REQUEST_NULL;
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.request = &request;
    SUCCEEDS(spark_ccl_group_start());
    SUCCEEDS(spark_ccl_all_reduce(comm, &product, &product, 1, TYPE, SPARK_CCL_PROD, NULL));
    SUCCEEDS(spark_ccl_all_reduce(comm, &sum, &sum, 1, TYPE, SPARK_CCL_SUM, &options));
    SUCCEEDS(spark_ccl_wait(&request));
    require(sum == 3, "a started call within a group");
    REFUSED(spark_ccl_send(comm, &sum, 1, TYPE, 17, &options), "rank 17");
    SUCCEEDS(spark_ccl_group_end());
    require(product == 6, "a call of a group");
}

/* A child that is forked within a group has no open group. */
static int child(int32_t *received)
{
    int32_t value = 4;
    spark_ccl_unique_id id;
    spark_ccl_comm *own = NULL;
    SUCCEEDS(spark_ccl_get_unique_id(&id));
    SUCCEEDS(spark_ccl_comm_create(&id, 0, 1, NULL, 0, &own));
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.factor = &value;
    SUCCEEDS(spark_ccl_all_reduce(own, &value, &value, 1, TYPE, SPARK_CCL_PRE_MUL_SUM, &options));
    require(value == 16, "a call that is done when it returns");
    REFUSED(spark_ccl_group_end(), "no group is open");
    SUCCEEDS(spark_ccl_group_start());
    SUCCEEDS(spark_ccl_barrier(own, NULL));
    SUCCEEDS(spark_ccl_group_end());
    SUCCEEDS(spark_ccl_comm_destroy(own));
    require(*received == -1, "what the parent has received");
    return 0;
}

static void forked(void)
{
    int32_t own = rank, got = -1;
    spark_ccl_request both_forked = SPARK_CCL_REQUEST_NULL;
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.request = &both_forked;
    SUCCEEDS(spark_ccl_group_start());
    SUCCEEDS(spark_ccl_recv(comm, &got, 1, TYPE, other, NULL));
    pid_t pid = fork();
    require(pid >= 0, "fork");
    if (pid == 0) {
        _exit(child(&got));
    }
    /* Otherwise the message of a rank that is ahead could be there before this one forks. */
    SUCCEEDS(spark_ccl_barrier(comm, &options));
    SUCCEEDS(spark_ccl_wait(&both_forked));
    int status = -1;
    require(waitpid(pid, &status, 0) == pid && status == 0, "the child failed");
    SUCCEEDS(spark_ccl_send(comm, &own, 1, TYPE, other, NULL));
    SUCCEEDS(spark_ccl_group_end());
    require(got == other, "a message to a parent");
}

static int32_t late = -1;

static void *leave_open(void *nothing)
{
    SUCCEEDS(spark_ccl_group_start());
    SUCCEEDS(spark_ccl_recv(comm, &late, 1, TYPE, other, NULL));
    return nothing;
}

/* Calls of a group whose thread has ended go on, and end with the communicator. */
static void abandoned(void)
{
    pthread_t thread;
    int32_t own = 20 + rank;
    require(pthread_create(&thread, NULL, leave_open, NULL) == 0, "pthread_create");
    require(pthread_join(thread, NULL) == 0, "pthread_join");
    REFUSED(spark_ccl_group_end(), "no group is open");
    SUCCEEDS(spark_ccl_send(comm, &own, 1, TYPE, other, NULL));
    SUCCEEDS(spark_ccl_comm_finalize(comm));
    require(late == 20 + other, "a message to a group that nobody has ended");
    SUCCEEDS(spark_ccl_comm_destroy(comm));
}

int main(void)
{
    join();
    other = 1 - rank;
    failures();
    calls_that_wait();
    requests();
    forked();
    abandoned();
    printf("rank %d of %d: right\n", rank, size);
    return 0;
}
