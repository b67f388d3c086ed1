/*
 * Communicators that threads use while another one destroys them. Two ranks.
 */
#include "check.h"

#include <pthread.h>
#include <time.h>

#define TYPE SPARK_CCL_INT32

enum { THREADS = 4 };

static spark_ccl_comm *shared;

static void rest(void)
{
    const struct timespec moment = {0, 100 * 1000 * 1000};
    require(nanosleep(&moment, NULL) == 0, "nanosleep");
}

static void start(pthread_t *thread, void *(*function)(void *), void *data)
{
    require(pthread_create(thread, NULL, function, data) == 0, "pthread_create");
}

static void end(pthread_t thread)
{
    require(pthread_join(thread, NULL) == 0, "pthread_join");
}

static void require_ended(spark_ccl_result result, const char *what)
{
    require(result == SPARK_CCL_INVALID && strstr(spark_ccl_last_error(), "ended") != NULL, what);
}

static void *receive(void *to)
{
    spark_ccl_result result = spark_ccl_recv(shared, to, 1, TYPE, 1, NULL);
    if (result == SPARK_CCL_SUCCESS) {
        require(*(int32_t *)to == 7, "a message for a call whose communicator was destroyed");
    } else {
        /* On a busy machine, the thread may come too late. */
        require_ended(result, "a call on a communicator that was destroyed");
    }
    return NULL;
}

/* A call under way goes on to its end, although the handle has ended. */
static void in_a_call(void)
{
    pthread_t thread;
    int32_t value = rank == 0 ? -1 : 7;
    SUCCEEDS(spark_ccl_comm_split(comm, 0, 0, &shared));
    if (rank == 0) {
        start(&thread, receive, &value);
        rest();
        SUCCEEDS(spark_ccl_comm_destroy(shared));
        require_ended(spark_ccl_barrier(shared, NULL), "a call afterwards");
    }
    SUCCEEDS(spark_ccl_barrier(comm, NULL));
    if (rank == 1) {
        /* Short: it is sent also to a rank that does not receive it. One that has left is no reason
         * to fail, either. */
        spark_ccl_result result = spark_ccl_send(shared, &value, 1, TYPE, 0, NULL);
        require(result == SPARK_CCL_SUCCESS || result == SPARK_CCL_REMOTE, "a send");
        SUCCEEDS(spark_ccl_comm_destroy(shared));
    } else {
        end(thread);
    }
}

static void *use(void *nothing)
{
    int32_t value = 1;
    spark_ccl_result result = SPARK_CCL_SUCCESS;
    while (result == SPARK_CCL_SUCCESS) {
        result = spark_ccl_all_reduce(shared, &value, &value, 1, TYPE, SPARK_CCL_SUM, NULL);
    }
    require_ended(result, "a call on a communicator that was destroyed");
    return nothing;
}

static void *destroy(void *succeeded)
{
    spark_ccl_result result = spark_ccl_comm_destroy(shared);
    if (result == SPARK_CCL_SUCCESS) {
        *(int *)succeeded = 1;
    } else {
        require_ended(result, "a communicator that is destroyed twice");
    }
    return NULL;
}

/* If several threads destroy it, one succeeds; threads that use it get an error. */
static void in_use(void)
{
    pthread_t users[THREADS], destroyers[THREADS];
    int succeeded[THREADS] = {0}, all = 0;
    spark_ccl_unique_id id;
    SUCCEEDS(spark_ccl_get_unique_id(&id));
    SUCCEEDS(spark_ccl_comm_create(&id, 0, 1, NULL, 0, &shared));
    for (int i = 0; i < THREADS; i++) {
        start(&users[i], use, NULL);
    }
    rest();
    for (int i = 0; i < THREADS; i++) {
        start(&destroyers[i], destroy, &succeeded[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        end(users[i]);
        end(destroyers[i]);
        all += succeeded[i];
    }
    require(all == 1, "how often it was destroyed");
}

int main(void)
{
    join();
    in_a_call();
    in_use();
    return leave();
}
