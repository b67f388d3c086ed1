/*
 * Calls that are started, and the ways to wait for them, or not to. Any number of ranks.
 */
#include "check.h"

#define TYPE SPARK_CCL_INT64

enum { COUNT = 100 };

static void fill(int64_t *buffer, int call)
{
    for (int i = 0; i < COUNT; i++) {
        buffer[i] = 1000 * rank + 10 * call + i;
    }
}

static void expect_sum(const int64_t *buffer, int call)
{
    for (int i = 0; i < COUNT; i++) {
        int64_t sum = (int64_t)size * (10 * call + i) + 500 * (int64_t)size * (size - 1);
        require(buffer[i] == sum, "a started call");
    }
}

static void started(void)
{
    enum { CALLS = 20 };
    static int64_t own[CALLS][COUNT];
    spark_ccl_request requests[CALLS];
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    for (int i = 0; i < CALLS; i++) {
        fill(own[i], i);
        options.request = &requests[i];
        SUCCEEDS(spark_ccl_all_reduce(comm, own[i], own[i], COUNT, TYPE, SPARK_CCL_SUM, &options));
        require(requests[i] != SPARK_CCL_REQUEST_NULL, "a request");
    }
    int done = 0;
    while (!done) {
        SUCCEEDS(spark_ccl_test(&requests[3], &done));
    }
    require(requests[3] == SPARK_CCL_REQUEST_NULL, "a request that is done");
    spark_ccl_request stale[] = {requests[0], requests[0], requests[0]};
    SUCCEEDS(spark_ccl_wait(&requests[0]));
    SUCCEEDS(spark_ccl_wait(&requests[0]));
    /* After an error there is nothing more to wait for, either. */
    REFUSED(spark_ccl_wait(&stale[0]), "request");
    done = 0;
    REFUSED(spark_ccl_test(&stale[1], &done), "request");
    require(done, "a stale request is done");
    REFUSED(spark_ccl_wait_all(stale, 3), "request");
    for (int i = 0; i < 3; i++) {
        require(stale[i] == SPARK_CCL_REQUEST_NULL, "a stale request that was waited for");
    }
    SUCCEEDS(spark_ccl_wait_all(requests, CALLS));
    for (int i = 0; i < CALLS; i++) {
        expect_sum(own[i], i);
    }
    options.request = &requests[0];
    REFUSED(spark_ccl_all_reduce(comm, NULL, own[0], 1, TYPE, SPARK_CCL_SUM, &options), "null");
    require(requests[0] == SPARK_CCL_REQUEST_NULL, "no request");
}

/* The message is sent only when all ranks have the sum. */
static void any(void)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    int64_t sum = rank, own = rank, got = -1;
    size_t which = 9;
    spark_ccl_request requests[4] = {SPARK_CCL_REQUEST_NULL};
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.request = &requests[1];
    SUCCEEDS(spark_ccl_recv(comm, &got, 1, TYPE, previous, &options));
    options.request = &requests[2];
    SUCCEEDS(spark_ccl_all_reduce(comm, &sum, &sum, 1, TYPE, SPARK_CCL_SUM, &options));
    SUCCEEDS(spark_ccl_wait_any(requests, 4, &which));
    require(which == 2 && requests[2] == SPARK_CCL_REQUEST_NULL, "the sum comes first");
    require(sum == (int64_t)size * (size - 1) / 2, "a sum");
    require(requests[1] != SPARK_CCL_REQUEST_NULL, "the other call is under way");
    SUCCEEDS(spark_ccl_barrier(comm, NULL));
    options.request = &requests[3];
    SUCCEEDS(spark_ccl_send(comm, &own, 1, TYPE, next, &options));
    spark_ccl_request stale = requests[1];
    for (int left = 2; left > 0; left--) {
        SUCCEEDS(spark_ccl_wait_any(requests, 4, &which));
        require(which == 1 || which == 3, "the message");
    }
    require(got == previous, "a message");
    SUCCEEDS(spark_ccl_wait_any(requests, 4, &which));
    require(which == 4, "nothing to wait for");
    SUCCEEDS(spark_ccl_wait_any(NULL, 0, &which));
    require(which == 0, "no requests");
    requests[2] = stale;
    REFUSED(spark_ccl_wait_any(requests, 4, &which), "request");
    require(which == 2 && requests[2] == SPARK_CCL_REQUEST_NULL, "a stale request");
    REFUSED(spark_ccl_wait_any(requests, 4, NULL), "index");
}

/* A request that is named twice is waited for once. */
static void twice(void)
{
    int64_t sum = rank;
    size_t which = 9;
    spark_ccl_request requests[2];
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    options.request = &requests[0];
    SUCCEEDS(spark_ccl_all_reduce(comm, &sum, &sum, 1, TYPE, SPARK_CCL_SUM, &options));
    requests[1] = requests[0];
    REFUSED(spark_ccl_wait_any(requests, 2, &which), "twice");
    require(which == 1, "the second of them");
    SUCCEEDS(spark_ccl_wait_any(requests, 2, &which));
    require(which == 0 && sum == (int64_t)size * (size - 1) / 2, "the first of them");
}

static int64_t late = -1;

/* Only finalize waits for this call. */
static void freed(void)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    int64_t own = 70 + rank;
    spark_ccl_request request = SPARK_CCL_REQUEST_NULL;
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    SUCCEEDS(spark_ccl_request_free(&request));
    options.request = &request;
    SUCCEEDS(spark_ccl_recv(comm, &late, 1, TYPE, previous, &options));
    spark_ccl_request stale = request;
    SUCCEEDS(spark_ccl_request_free(&request));
    require(request == SPARK_CCL_REQUEST_NULL, "a request that was freed");
    REFUSED(spark_ccl_request_free(&stale), "request");
    REFUSED(spark_ccl_request_free(NULL), "null");
    SUCCEEDS(spark_ccl_send(comm, &own, 1, TYPE, next, NULL));
    SUCCEEDS(spark_ccl_comm_finalize(comm));
    require(late == 70 + previous, "a call whose request was freed");
    SUCCEEDS(spark_ccl_comm_destroy(comm));
}

/*
 * A call that is tested needs one of another communicator: the other ranks begin it only after the
 * other has ended there. Ranks are processes here; threads of one process would drive each other's
 * calls.
 */
static void of_another_communicator(void)
{
    enum { MANY = 1 << 20 };
    int64_t *own = calloc(MANY, sizeof *own), sum = 3;
    spark_ccl_comm *part = NULL;
    spark_ccl_request first = SPARK_CCL_REQUEST_NULL, second = SPARK_CCL_REQUEST_NULL;
    spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
    require(own != NULL, "calloc");
    for (int i = 0; i < MANY; i++) {
        own[i] = rank + i;
    }
    SUCCEEDS(spark_ccl_comm_split(comm, 0, 0, &part));
    options.request = &first;
    SUCCEEDS(spark_ccl_all_reduce(comm, own, own, MANY, TYPE, SPARK_CCL_SUM, &options));
    if (rank != 0) {
        SUCCEEDS(spark_ccl_wait(&first));
    }
    options.request = &second;
    SUCCEEDS(spark_ccl_all_reduce(part, &sum, &sum, 1, TYPE, SPARK_CCL_SUM, &options));
    for (int done = 0; !done;) {
        SUCCEEDS(spark_ccl_test(&second, &done));
    }
    SUCCEEDS(spark_ccl_wait(&first));
    require(sum == 3 * (int64_t)size, "a call that is tested");
    for (int i = 0; i < MANY; i++) {
        require(own[i] == (int64_t)size * i + (int64_t)size * (size - 1) / 2, "a call of another communicator");
    }
    SUCCEEDS(spark_ccl_comm_destroy(part));
    free(own);
}

/* Calls that some ranks never make: each ends after the time limit with which it began. */
static void timed(void)
{
    for (int own_time = 0; own_time < 2; own_time++) {
        spark_ccl_comm *part = NULL;
        spark_ccl_request request = SPARK_CCL_REQUEST_NULL;
        spark_ccl_options options = SPARK_CCL_OPTIONS_INIT;
        options.request = &request;
        options.timeout = own_time ? 300 : 0;
        SUCCEEDS(spark_ccl_comm_split(comm, 0, 0, &part));
        if (rank == 0) {
            SUCCEEDS(spark_ccl_comm_set_timeout(part, own_time ? 3600000 : 300));
            SUCCEEDS(spark_ccl_barrier(part, &options));
            SUCCEEDS(spark_ccl_comm_set_timeout(part, 3600000));
            spark_ccl_result expected = size == 1 ? SPARK_CCL_SUCCESS : SPARK_CCL_TIMEOUT;
            require(spark_ccl_wait(&request) == expected, "a call that began with 300 ms");
        }
        SUCCEEDS(spark_ccl_barrier(comm, NULL));
        SUCCEEDS(spark_ccl_comm_destroy(part));
    }
}

int main(void)
{
    join();
    started();
    any();
    twice();
    timed();
    of_another_communicator();
    freed();
    printf("rank %d of %d: right\n", rank, size);
    return 0;
}
