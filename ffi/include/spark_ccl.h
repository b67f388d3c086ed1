/*
 * spark-ccl: collective communication between the ranks of a job, on memory of the host.
 *
 * Link with -lspark_ccl (pkg-config: spark_ccl). Every function may be called from any thread and returns a result
 * code; what lies behind a code other than SPARK_CCL_SUCCESS is told by spark_ccl_last_error() in the same thread.
 *
 * All ranks of a communicator must make the same collective calls with matching arguments in the same order. Messages
 * of two ranks match in the order of their calls. After SPARK_CCL_TIMEOUT or SPARK_CCL_REMOTE a communicator refuses
 * further work: destroy it, or go on without the ranks that are lost (spark_ccl_comm_shrink).
 *
 * Handles. Communicators and requests are handles: one that has ended is an error, not a crash. A communicator that is
 * destroyed while calls use it stays until they are done. In a forked child, the parent's handles are no handles; the
 * child may make its own.
 *
 * Buffers. `count` is in elements; buffers must be aligned to their elements, and may be NULL where they have none.
 * Buffers of a call must not overlap, unless the call is in place: each function says when it is. Until a call is
 * done, nobody else may write what it sends, or use what it receives.
 */
#ifndef SPARK_CCL_H
#define SPARK_CCL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What this header is of: 10000 times the major, 100 times the minor, and the patch number. */
#define SPARK_CCL_VERSION 100

/* What the library is of that is linked at run time. */
int spark_ccl_version(void);

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

/* Reductions; the first five are numbered as in NCCL's ncclRedOp_t. */
typedef enum {
    SPARK_CCL_SUM = 0,
    SPARK_CCL_PROD = 1,
    SPARK_CCL_MAX = 2,
    SPARK_CCL_MIN = 3,
    SPARK_CCL_AVG = 4,
    /* The sum of what each rank has, times its factor (spark_ccl_options). */
    SPARK_CCL_PRE_MUL_SUM = 5
} spark_ccl_op;

/*
 * Names a group of ranks that is about to meet. It holds a secret: whoever has it can join. Pass it to the other ranks
 * through something that strangers cannot read.
 */
typedef struct {
    unsigned char bytes[128];
} spark_ccl_unique_id;

/* One rank of a group. */
typedef struct spark_ccl_comm spark_ccl_comm;

/* A call that was started. */
typedef uint64_t spark_ccl_request;
#define SPARK_CCL_REQUEST_NULL ((spark_ccl_request)0)

/* A setting of the library, with the names and values of its environment variables: "SPARK_CCL_TIMEOUT", "30". */
typedef struct {
    const char *name;
    const char *value;
} spark_ccl_setting;

/*
 * What a call may have besides its arguments. Begin with SPARK_CCL_OPTIONS_INIT: later versions add members at the
 * end, and know by struct_size which ones a program has. A library that is older than the program refuses options which
 * it does not know, unless they are at their defaults (SPARK_CCL_INVALID). NULL stands for all defaults.
 */
typedef struct {
    size_t struct_size;
    /* Not NULL: the call is started, and *request is what to wait for. It becomes SPARK_CCL_REQUEST_NULL on failure. */
    spark_ccl_request *request;
    /* A name, which is compared between the ranks and shown in errors. */
    const char *name;
    /* For SPARK_CCL_PRE_MUL_SUM: one element of the call's type. */
    const void *factor;
    /*
     * Not 0: the call's buffers lie in memory of spark_ccl_alloc, on all ranks at the same offsets, and the call may go
     * without copies. All ranks must set it in the same calls. SPARK_CCL_INVALID if a buffer lies elsewhere.
     */
    int registered;
} spark_ccl_options;
#define SPARK_CCL_OPTIONS_INIT {sizeof(spark_ccl_options), NULL, NULL, NULL, 0}

/*
 * Communicators
 */

/*
 * Makes a new id. This process serves the meeting of the ranks, so it must live until they have met; it is usually rank
 * 0, but need not be a rank.
 */
spark_ccl_result spark_ccl_get_unique_id(spark_ccl_unique_id *id);

/*
 * The id as text, 256 hexadecimal digits and the end, for what passes strings: a file, a key-value store, or
 * SPARK_CCL_UNIQUE_ID in the environment. `size` is that of `text`, in characters: SPARK_CCL_UNIQUE_ID_TEXT at least.
 */
#define SPARK_CCL_UNIQUE_ID_TEXT 257
spark_ccl_result spark_ccl_unique_id_to_text(const spark_ccl_unique_id *id, char *text, size_t size);

/* The id that a text is of; spaces and ends of lines around it do not matter. SPARK_CCL_INVALID if it is damaged. */
spark_ccl_result spark_ccl_unique_id_from_text(const char *text, spark_ccl_unique_id *id);

/*
 * Joins the group of `size` ranks that share `id`, as rank `rank` (0 to size - 1). Returns when all ranks have come.
 * `settings` has `settings_count` elements, and may be NULL for none; they win over the environment. *comm becomes the
 * communicator, or NULL on failure.
 */
spark_ccl_result spark_ccl_comm_create(const spark_ccl_unique_id *id, int rank, int size,
                                       const spark_ccl_setting *settings, size_t settings_count,
                                       spark_ccl_comm **comm);

/*
 * Joins the ranks that a launcher started: torchrun, mpirun of Open MPI or MPICH, srun, or anything that sets
 * SPARK_CCL_RANK, SPARK_CCL_SIZE and SPARK_CCL_UNIQUE_ID. *comm becomes the communicator, or NULL on failure.
 */
spark_ccl_result spark_ccl_comm_from_env(const spark_ccl_setting *settings, size_t settings_count,
                                         spark_ccl_comm **comm);

/*
 * Makes a communicator of the ranks that pass the same color, ordered by key and then by rank. All ranks call this. A
 * rank whose color is below 0 gets NULL, and success.
 */
spark_ccl_result spark_ccl_comm_split(spark_ccl_comm *comm, int color, int key,
                                      spark_ccl_comm **part);

/*
 * Makes a communicator of the ranks that are left, in their order, after `comm` has failed. All of these call this;
 * `lost` names `lost_count` ranks that are to be left out even if they live, and may be NULL for none.
 */
spark_ccl_result spark_ccl_comm_shrink(spark_ccl_comm *comm, const int *lost, size_t lost_count,
                                       spark_ccl_comm **rest);

/* The communicator's own rank. */
spark_ccl_result spark_ccl_comm_rank(spark_ccl_comm *comm, int *rank);

/* Number of ranks. */
spark_ccl_result spark_ccl_comm_size(spark_ccl_comm *comm, int *size);

/* How long each call may take from now on. All ranks should set the same. */
spark_ccl_result spark_ccl_comm_set_timeout(spark_ccl_comm *comm, unsigned milliseconds);

/* Success while the communicator works; else why it has failed, as its calls say. Waits for nothing. */
spark_ccl_result spark_ccl_comm_check(spark_ccl_comm *comm);

/*
 * Fails the communicator on all ranks: calls under way and later ones return SPARK_CCL_REMOTE, with `reason` (may be
 * NULL) in their message.
 */
spark_ccl_result spark_ccl_comm_abort(spark_ccl_comm *comm, const char *reason);

/* Waits until all ranks have called this and all started calls are done, and leaves the group. Destroy it afterwards. */
spark_ccl_result spark_ccl_comm_finalize(spark_ccl_comm *comm);

/*
 * Frees the communicator, and its registered memory, when the last call that uses it is done. Does not wait for other
 * ranks. NULL is allowed.
 */
spark_ccl_result spark_ccl_comm_destroy(spark_ccl_comm *comm);

/*
 * Memory
 */

/*
 * Allocates `bytes` of zeroed memory that the other ranks and RDMA devices reach, for calls without copies. All ranks
 * call this with the same size. *memory is aligned for all types, or NULL on failure. Any part of it may be a buffer of
 * any call, like other memory. A call of this communicator goes without copies where its options say so (`registered`):
 * then all of its buffers lie in such memory, on all ranks at the same offsets.
 */
spark_ccl_result spark_ccl_alloc(spark_ccl_comm *comm, size_t bytes, void **memory);

/* Frees memory of spark_ccl_alloc. No call may use it. NULL is allowed. */
spark_ccl_result spark_ccl_free(spark_ccl_comm *comm, void *memory);

/*
 * Collectives. Each is done when it returns, unless it is started (spark_ccl_options.request) or grouped.
 */

/* recv[i] = the reduction of all ranks' send[i], with the same bits on all ranks. In place if recv is send. */
spark_ccl_result spark_ccl_all_reduce(spark_ccl_comm *comm, const void *send, void *recv,
                                      size_t count, spark_ccl_dtype dtype, spark_ccl_op op,
                                      const spark_ccl_options *options);

/* The same, on the root only; the others' recv is not looked at. In place if recv is send on the root. */
spark_ccl_result spark_ccl_reduce(spark_ccl_comm *comm, const void *send, void *recv, size_t count,
                                  spark_ccl_dtype dtype, spark_ccl_op op, int root,
                                  const spark_ccl_options *options);

/* recv = the root's send; the others' send is not looked at. In place if recv is send on the root. */
spark_ccl_result spark_ccl_broadcast(spark_ccl_comm *comm, const void *send, void *recv,
                                     size_t count, spark_ccl_dtype dtype, int root,
                                     const spark_ccl_options *options);

/*
 * recv = the `count` elements of each rank, by rank; it has count * size. In place if send is this rank's block of
 * recv, which begins rank * count elements in.
 */
spark_ccl_result spark_ccl_all_gather(spark_ccl_comm *comm, const void *send, void *recv,
                                      size_t count, spark_ccl_dtype dtype,
                                      const spark_ccl_options *options);

/*
 * recv = this rank's block, of `count` elements, of the reduction of all ranks' send, which have count * size. In place
 * if recv is this rank's block of send.
 */
spark_ccl_result spark_ccl_reduce_scatter(spark_ccl_comm *comm, const void *send, void *recv,
                                          size_t count, spark_ccl_dtype dtype, spark_ccl_op op,
                                          const spark_ccl_options *options);

/* As spark_ccl_all_gather, on the root only; the others' recv is not looked at. */
spark_ccl_result spark_ccl_gather(spark_ccl_comm *comm, const void *send, void *recv, size_t count,
                                  spark_ccl_dtype dtype, int root, const spark_ccl_options *options);

/*
 * recv = this rank's block, of `count` elements, of the root's send, which has count * size; the others' send is not
 * looked at. In place on the root if recv is its block of send.
 */
spark_ccl_result spark_ccl_scatter(spark_ccl_comm *comm, const void *send, void *recv, size_t count,
                                   spark_ccl_dtype dtype, int root,
                                   const spark_ccl_options *options);

/* Block p of send goes to rank p, as this rank's block of its recv; blocks have `count` elements. In place if recv is send. */
spark_ccl_result spark_ccl_all_to_all(spark_ccl_comm *comm, const void *send, void *recv,
                                      size_t count, spark_ccl_dtype dtype,
                                      const spark_ccl_options *options);

/*
 * The same with blocks of any lengths: for rank p, send_counts[p] elements from send_begins[p] on; from rank p,
 * recv_counts[p] to recv_begins[p]. Where begins are NULL, blocks follow each other. Never in place.
 */
spark_ccl_result spark_ccl_all_to_all_v(spark_ccl_comm *comm, const void *send,
                                        const size_t *send_counts, const size_t *send_begins,
                                        void *recv, const size_t *recv_counts,
                                        const size_t *recv_begins, spark_ccl_dtype dtype,
                                        const spark_ccl_options *options);

/* Returns on no rank before it was called on all. */
spark_ccl_result spark_ccl_barrier(spark_ccl_comm *comm, const spark_ccl_options *options);

/*
 * Messages. A receiver must expect as many elements as are sent. To send to and receive from one another, two ranks
 * group the calls, or start them.
 */
spark_ccl_result spark_ccl_send(spark_ccl_comm *comm, const void *send, size_t count,
                                spark_ccl_dtype dtype, int to, const spark_ccl_options *options);
spark_ccl_result spark_ccl_recv(spark_ccl_comm *comm, void *recv, size_t count,
                                spark_ccl_dtype dtype, int from, const spark_ccl_options *options);

/*
 * Groups. The calls that a thread makes between start and the matching end go on side by side. Each begins at once; the
 * outermost end waits for all of them. It returns the first failure, in the order of the calls, also of a call that could
 * not begin: such a call says so itself, and the group stays open. So a group is always ended, whatever happens in it.
 *
 * A call with a request is not the group's. What waits for other ranks by itself is SPARK_CCL_INVALID within a group:
 * spark_ccl_comm_create, from_env, split, shrink and finalize, and spark_ccl_alloc. A communicator that is destroyed
 * stays until the group's calls are done.
 *
 * The thread that has started a group must end it. If it ends before, nobody can wait for the group's calls but
 * spark_ccl_comm_finalize: until then their buffers must stay. A child that is forked has no open group.
 */
spark_ccl_result spark_ccl_group_start(void);
spark_ccl_result spark_ccl_group_end(void);

/*
 * Waits for a started call, and returns what became of it. *request is SPARK_CCL_REQUEST_NULL then, whatever is returned;
 * waiting for that does nothing.
 */
spark_ccl_result spark_ccl_wait(spark_ccl_request *request);

/* Waits for all of them, as spark_ccl_wait does, also if one has failed; returns the first failure in their order. */
spark_ccl_result spark_ccl_wait_all(spark_ccl_request *requests, size_t count);

/*
 * Waits until one of them is done: *index is its place, and the rest is as of spark_ccl_wait. Those that are
 * SPARK_CCL_REQUEST_NULL are passed over; *index is `count` if all are.
 */
spark_ccl_result spark_ccl_wait_any(spark_ccl_request *requests, size_t count, size_t *index);

/*
 * Frees a request without waiting: its call goes on, and its buffers must stay until spark_ccl_comm_finalize has returned.
 * *request is SPARK_CCL_REQUEST_NULL then.
 */
spark_ccl_result spark_ccl_request_free(spark_ccl_request *request);

/*
 * Whether a started call is done. If it is, or on any error, *done is 1, and the rest is as of spark_ccl_wait, which would
 * not have waited. Else *done is 0, and the call has gone on as far as it can.
 */
spark_ccl_result spark_ccl_test(spark_ccl_request *request, int *done);

/*
 * Errors and logs
 */

/* A few words for a result code. Never NULL; not to be freed. */
const char *spark_ccl_result_string(spark_ccl_result result);

/*
 * What went wrong in the last call of this thread that failed; empty if none did. Valid until the next failure in the
 * same thread; not to be freed.
 */
const char *spark_ccl_last_error(void);

/* Takes a line of the log, without its end, until it returns. */
typedef void (*spark_ccl_log_function)(const char *line, void *data);

/*
 * Passes log lines to a function from now on, once in a process; `filter` is as SPARK_CCL_LOG, and NULL means "info".
 * Any thread may call the function, several at once. It must not call this library.
 */
spark_ccl_result spark_ccl_set_log(spark_ccl_log_function function, void *data, const char *filter);

#ifdef __cplusplus
}
#endif

#endif
