/*
 * What the programs of the tests have in common.
 */
#ifndef CHECK_H
#define CHECK_H

#include "spark_ccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A program whose ranks are threads defines it as what makes a variable each thread's own. */
#ifndef OF_THREAD
#define OF_THREAD
#endif
static OF_THREAD spark_ccl_comm *comm;
static OF_THREAD int rank = -1, size = -1;

static inline void require(int condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "rank %d: %s: %s\n", rank, what, spark_ccl_last_error());
        exit(1);
    }
}

#define SUCCEEDS(call) require((call) == SPARK_CCL_SUCCESS, #call)
#define REFUSED(call, word)                                                                        \
    require((call) == SPARK_CCL_INVALID && strstr(spark_ccl_last_error(), word) != NULL, #call)

/* The ranks that a launcher has started; none waits for long for one that has failed. */
static inline void join(void)
{
    const spark_ccl_setting settings[] = {{"SPARK_CCL_TIMEOUT", "30"}};
    SUCCEEDS(spark_ccl_comm_from_env(settings, 1, &comm));
    SUCCEEDS(spark_ccl_comm_rank(comm, &rank));
    SUCCEEDS(spark_ccl_comm_size(comm, &size));
}

static inline int leave(void)
{
    SUCCEEDS(spark_ccl_comm_finalize(comm));
    SUCCEEDS(spark_ccl_comm_destroy(comm));
    printf("rank %d of %d: right\n", rank, size);
    return 0;
}

#endif
