/*
 * spark-ccl: collective communication. First slice of the C interface.
 *
 * Link with -lspark_ccl. Every function may be called from any thread, returns a result code, and
 * does not return before its work is done; what lies behind a code other than SPARK_CCL_SUCCESS is
 * told by spark_ccl_last_error() in the same thread.
 *
 * All ranks of a communicator must make the same calls with matching arguments in the same order.
 * After SPARK_CCL_TIMEOUT or SPARK_CCL_REMOTE the communicator refuses further work: destroy it. The
 * process can make a new one.
 */
#ifndef SPARK_CCL_H
#define SPARK_CCL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What became of a call. */
typedef enum {
    SPARK_CCL_SUCCESS = 0,
    /* Arguments, settings or environment that cannot be right. Nothing was sent. */
    SPARK_CCL_INVALID = 1,
    /* A deadline passed; the message names the ranks that are late. */
    SPARK_CCL_TIMEOUT = 2,
    /* Another rank died, aborted, made a different call, or cannot be reached. */
    SPARK_CCL_REMOTE = 3,
    /* The operating system refused something, or this machine cannot do it. */
    SPARK_CCL_SYSTEM = 4,
    /* A defect of the library. */
    SPARK_CCL_INTERNAL = 5
} spark_ccl_result;

/* Element types, numbered as in NCCL's ncclDataType_t. */
typedef enum {
    SPARK_CCL_INT8 = 0,
    SPARK_CCL_UINT8 = 1,
    SPARK_CCL_INT32 = 2,
    SPARK_CCL_UINT32 = 3,
    SPARK_CCL_INT64 = 4,
    SPARK_CCL_UINT64 = 5,
    SPARK_CCL_FLOAT16 = 6,
    SPARK_CCL_FLOAT32 = 7,
    SPARK_CCL_FLOAT64 = 8,
    SPARK_CCL_BFLOAT16 = 9,
    SPARK_CCL_FLOAT8_E4M3 = 10,
    SPARK_CCL_FLOAT8_E5M2 = 11
} spark_ccl_dtype;

/* Reductions, numbered as in NCCL's ncclRedOp_t. */
typedef enum {
    SPARK_CCL_SUM = 0,
    SPARK_CCL_PROD = 1,
    SPARK_CCL_MAX = 2,
    SPARK_CCL_MIN = 3,
    SPARK_CCL_AVG = 4
} spark_ccl_op;

/*
 * Names a group of ranks that is about to meet. It holds a secret: whoever has it can join. Pass it
 * to the other ranks through something that strangers cannot read.
 */
typedef struct {
    unsigned char bytes[128];
} spark_ccl_unique_id;

/* One rank of a group. */
typedef struct spark_ccl_comm spark_ccl_comm;

/*
 * Makes a new id. This process serves the meeting of the ranks, so it must live until they have
 * met; it is usually rank 0, but need not be a rank.
 */
spark_ccl_result spark_ccl_get_unique_id(spark_ccl_unique_id *id);

/*
 * Joins the group of `size` ranks that share `id`, as rank `rank` (0 to size - 1). Returns when all
 * ranks have come. *comm becomes the communicator, or NULL on failure.
 */
spark_ccl_result spark_ccl_comm_create(const spark_ccl_unique_id *id, int rank, int size,
                                       spark_ccl_comm **comm);

/*
 * Joins the ranks that a launcher started: torchrun, mpirun of Open MPI or MPICH, srun, or anything
 * that sets SPARK_CCL_RANK, SPARK_CCL_SIZE and SPARK_CCL_UNIQUE_ID. *comm becomes the communicator,
 * or NULL on failure.
 */
spark_ccl_result spark_ccl_comm_from_env(spark_ccl_comm **comm);

/* The communicator's own rank. */
spark_ccl_result spark_ccl_comm_rank(const spark_ccl_comm *comm, int *rank);

/* Number of ranks. */
spark_ccl_result spark_ccl_comm_size(const spark_ccl_comm *comm, int *size);

/*
 * recv[i] = the reduction of all ranks' send[i], on every rank and with the same bits on all of
 * them, for `count` elements. In place if `recv` is `send`; otherwise they must not overlap. Both
 * must be aligned to their elements; with a count of 0 they may be NULL.
 */
spark_ccl_result spark_ccl_all_reduce(spark_ccl_comm *comm, const void *send, void *recv,
                                      size_t count, spark_ccl_dtype dtype, spark_ccl_op op);

/* Returns on no rank before it was called on all. */
spark_ccl_result spark_ccl_barrier(spark_ccl_comm *comm);

/*
 * Fails the communicator on all ranks: calls under way and later ones return SPARK_CCL_REMOTE, with
 * `reason` (may be NULL) in their message.
 */
spark_ccl_result spark_ccl_comm_abort(spark_ccl_comm *comm, const char *reason);

/*
 * Leaves the group and frees the communicator, which no thread may be using. Does not wait for the
 * other ranks (spark_ccl_barrier does). NULL is allowed.
 */
spark_ccl_result spark_ccl_comm_destroy(spark_ccl_comm *comm);

/* A few words for a result code. Never NULL; not to be freed. */
const char *spark_ccl_result_string(spark_ccl_result result);

/*
 * What went wrong in the last call of this thread that failed; empty if none did. Valid until the
 * next failure in the same thread; not to be freed.
 */
const char *spark_ccl_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
