/*
 * Two ranks reduce vectors and check every element.
 *
 *   ranks             makes the second process itself, and passes the unique id through a pipe
 *   ranks env         takes the ranks that a launcher made
 */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 100003 };

static void check_sum(void)
{
    static float send[COUNT], recv[COUNT];
    for (int i = 0; i < COUNT; i++) {
        send[i] = (float)(i % 1000 + rank);
    }
    SUCCEEDS(spark_ccl_all_reduce(comm, send, recv, COUNT, SPARK_CCL_FLOAT32, SPARK_CCL_SUM, NULL));
    for (int i = 0; i < COUNT; i++) {
        float sum = (float)(i % 1000 * size + size * (size - 1) / 2);
        require(recv[i] == sum, "a sum is wrong");
    }
}

static void check_in_place(void)
{
    long long values[3] = {rank, -rank, 7};
    SUCCEEDS(spark_ccl_all_reduce(comm, values, values, 3, SPARK_CCL_INT64, SPARK_CCL_MAX, NULL));
    require(values[0] == size - 1 && values[1] == 0 && values[2] == 7, "a maximum is wrong");
}

static void check_refusals(void)
{
    char bytes[16] = {0};
    REFUSED(spark_ccl_all_reduce(NULL, bytes, bytes, 1, SPARK_CCL_INT8, SPARK_CCL_SUM, NULL), "comm");
    REFUSED(spark_ccl_all_reduce(comm, NULL, bytes, 1, SPARK_CCL_INT8, SPARK_CCL_SUM, NULL), "send");
    REFUSED(spark_ccl_all_reduce(comm, bytes, NULL, 1, SPARK_CCL_INT8, SPARK_CCL_SUM, NULL), "receive");
    REFUSED(spark_ccl_all_reduce(comm, bytes, bytes, 1, (spark_ccl_dtype)12, SPARK_CCL_SUM, NULL), "12");
    REFUSED(spark_ccl_all_reduce(comm, bytes, bytes, 1, SPARK_CCL_INT8, (spark_ccl_op)6, NULL), "6");
    REFUSED(spark_ccl_all_reduce(comm, bytes, bytes, (size_t)-1, SPARK_CCL_INT32, SPARK_CCL_SUM, NULL),
            "count");
    REFUSED(spark_ccl_all_reduce(comm, bytes, bytes + 2, 4, SPARK_CCL_INT8, SPARK_CCL_SUM, NULL),
            "overlap");
    REFUSED(spark_ccl_comm_rank(comm, NULL), "rank");
    REFUSED(spark_ccl_get_unique_id(NULL), "id");
    SUCCEEDS(spark_ccl_all_reduce(comm, NULL, NULL, 0, SPARK_CCL_INT8, SPARK_CCL_SUM, NULL));
    SUCCEEDS(spark_ccl_comm_destroy(NULL));
}

static void run(void)
{
    SUCCEEDS(spark_ccl_comm_rank(comm, &rank));
    SUCCEEDS(spark_ccl_comm_size(comm, &size));
    require(size == 2 && rank >= 0 && rank < size, "rank and size");
    check_refusals();
    check_sum();
    check_in_place();

    /* Once one rank has given up, every rank's calls fail: perhaps the other's first barrier. */
    if (rank == 0) {
        SUCCEEDS(spark_ccl_barrier(comm, NULL));
        SUCCEEDS(spark_ccl_comm_abort(comm, "enough for today"));
    }
    spark_ccl_result result;
    do {
        result = spark_ccl_barrier(comm, NULL);
    } while (result == SPARK_CCL_SUCCESS);
    require(result == SPARK_CCL_REMOTE, "a barrier after an abort");
    require(strstr(spark_ccl_last_error(), "enough for today") != NULL, "the reason of an abort");
    require(strlen(spark_ccl_result_string(result)) > 0, "the name of a result");
    SUCCEEDS(spark_ccl_comm_destroy(comm));
    REFUSED(spark_ccl_comm_destroy(comm), "ended");
    REFUSED(spark_ccl_barrier(comm, NULL), "ended");
    printf("rank %d of %d: right\n", rank, size);
}

/* The same id, passed as text. */
static void check_text(const spark_ccl_unique_id *id)
{
    char text[SPARK_CCL_UNIQUE_ID_TEXT + 2];
    spark_ccl_unique_id same;
    memset(text, 'x', sizeof text);
    SUCCEEDS(spark_ccl_unique_id_to_text(id, text, SPARK_CCL_UNIQUE_ID_TEXT));
    require(strlen(text) == SPARK_CCL_UNIQUE_ID_TEXT - 1, "the length of a text");
    require(text[SPARK_CCL_UNIQUE_ID_TEXT] == 'x', "what is behind a text");
    strcat(text, "\n");
    SUCCEEDS(spark_ccl_unique_id_from_text(text, &same));
    require(memcmp(id, &same, sizeof same) == 0, "an id that was text");
    text[100] = (char)(text[100] == '0' ? '1' : '0');
    REFUSED(spark_ccl_unique_id_from_text(text, &same), "id");
    REFUSED(spark_ccl_unique_id_from_text("", &same), "256 hexadecimal digits");
    REFUSED(spark_ccl_unique_id_from_text(NULL, &same), "text");
    REFUSED(spark_ccl_unique_id_from_text(text, NULL), "id");
    REFUSED(spark_ccl_unique_id_to_text(id, text, SPARK_CCL_UNIQUE_ID_TEXT - 1), "room for 256");
    REFUSED(spark_ccl_unique_id_to_text(id, NULL, 300), "text");
    memset(&same, 0, sizeof same);
    REFUSED(spark_ccl_unique_id_to_text(&same, text, sizeof text), "id");
}

static void from_launcher(void)
{
    SUCCEEDS(spark_ccl_comm_from_env(NULL, 0, &comm));
    run();
}

static void from_unique_id(void)
{
    int ends[2];
    require(pipe(ends) == 0, "pipe");
    pid_t child = fork();
    require(child >= 0, "fork");

    spark_ccl_unique_id id;
    if (child == 0) {
        require(read(ends[0], &id, sizeof id) == (ssize_t)sizeof id, "read");
        SUCCEEDS(spark_ccl_comm_create(&id, 1, 2, NULL, 0, &comm));
        run();
        return;
    }
    REFUSED(spark_ccl_comm_from_env(NULL, 0, &comm), "launcher");
    REFUSED(spark_ccl_comm_create(NULL, 0, 2, NULL, 0, &comm), "id");
    SUCCEEDS(spark_ccl_get_unique_id(&id));
    check_text(&id);
    REFUSED(spark_ccl_comm_create(&id, -1, 2, NULL, 0, &comm), "rank");
    REFUSED(spark_ccl_comm_create(&id, 0, 2, NULL, 0, NULL), "communicator");
    require(comm == NULL, "a communicator that could not be made");
    require(write(ends[1], &id, sizeof id) == (ssize_t)sizeof id, "write");
    SUCCEEDS(spark_ccl_comm_create(&id, 0, 2, NULL, 0, &comm));
    run();

    int status = -1;
    require(waitpid(child, &status, 0) == child && status == 0, "rank 1 failed");
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "env") == 0) {
        from_launcher();
    } else {
        from_unique_id();
    }
    return 0;
}
