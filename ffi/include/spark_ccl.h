/*
 * spark-ccl: collective communication between the ranks of a job, on memory of the host and of
 * GPUs.
 *
 * A rank is a process, or a thread, that takes part. Each makes a communicator
 * (spark_ccl_comm_from_env, or spark_ccl_comm_create), calls collectives with it, and ends it:
 * spark_ccl_comm_finalize, then spark_ccl_comm_destroy. Link with -lspark_ccl (pkg-config:
 * spark_ccl).
 *
 * Results. A function returns SPARK_CCL_SUCCESS or says what went wrong; spark_ccl_last_error() has
 * the text, in the same thread. Results by way of pointers are written on success; a function says
 * if it writes them on failure, too. Pointers must not be NULL unless a function allows it;
 * SPARK_CCL_INVALID if one is.
 *
 * Order. All ranks of a communicator make the same collective calls, with the same arguments but
 * for the buffers, in the same order. A difference is SPARK_CCL_REMOTE, on all ranks that notice
 * it. spark_ccl_comm_split, spark_ccl_comm_finalize and spark_ccl_alloc are collective calls, too.
 * Messages between two ranks match in the order of their calls, on their own.
 *
 * Failures. After SPARK_CCL_TIMEOUT or SPARK_CCL_REMOTE from a call, its communicator refuses all
 * further calls with the same text, and what the call should have received is undefined. Destroy
 * the communicator, or go on without the ranks that are lost: spark_ccl_comm_recover. After other
 * failures it still works. But a rank whose collective call was refused has not taken part in it:
 * the others wait for it until their timeout.
 *
 * Time. No function waits for other ranks without a limit. Joining them takes at most the setting
 * SPARK_CCL_INIT_TIMEOUT (120 seconds by default), and so do spark_ccl_comm_recover and
 * spark_ccl_comm_shrink. A call takes at most the setting SPARK_CCL_TIMEOUT (600 seconds), unless
 * spark_ccl_comm_set_timeout or its options say otherwise.
 *
 * Threads. Any thread may call any function, also several at once with one communicator. The
 * program then sees to it that collective calls come in the same order on all ranks.
 *
 * Handles. Communicators and requests are handles: to use one that has ended is SPARK_CCL_INVALID,
 * not a crash. The number of a handle is never used again. A call that another thread is in when
 * its communicator is destroyed goes on to its end. A forked child has none of its parent's, and
 * may make its own.
 *
 * Buffers. Lengths are in elements unless they are said to be in bytes. A buffer must be aligned to
 * its elements, to 8 bytes for doubles. It may be NULL where it has no elements; a call with a
 * `count` of 0 is a call all the same, which all ranks make. The two buffers of a call must not
 * overlap, unless the call is in place: each function says when it is. Until a call is done, nobody
 * else may write what it sends, or read or write what it receives.
 *
 * Devices. The buffers of a call are memory of the host, or, where its options say so on all ranks
 * (`on_device`), of the rank's GPU: see "Device memory" below.
 */
#ifndef SPARK_CCL_H
#define SPARK_CCL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header: 10000 times the major number, plus 100 times the minor one, plus the
 * patch number. */
#define SPARK_CCL_VERSION 100

/* The version, in the same form, of the library that the program runs with. */
int spark_ccl_version(void);

/* The result of a call. Later versions may add results: treat unknown ones as failures. */
typedef enum {
    SPARK_CCL_SUCCESS = 0,
    /* Invalid arguments, settings or environment. Nothing was sent; the communicator still works.
     */
    SPARK_CCL_INVALID = 1,
    /* The timeout has passed; the text names the late ranks. */
    SPARK_CCL_TIMEOUT = 2,
    /* Another rank died, aborted, made a different call, or cannot be reached. */
    SPARK_CCL_REMOTE = 3,
    /* The operating system refused something (memory, ports), or this machine cannot do it. */
    SPARK_CCL_SYSTEM = 4,
    /* A defect of the library; please report it with the text. */
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

/* Reductions; the first five are numbered as in NCCL's ncclRedOp_t. Every reduction works with
 * every type. */
typedef enum {
    /* Integers wrap around, in sums and products. */
    SPARK_CCL_SUM = 0,
    SPARK_CCL_PROD = 1,
    /* In maxima and minima, NaN wins over numbers. */
    SPARK_CCL_MAX = 2,
    SPARK_CCL_MIN = 3,
    /*
     * The mean. Integers are summed, divided, and rounded towards 0. Floats are multiplied by
     * 1/size before they are added, so none overflows: in their type (denormals may lose their last
     * bits), those of less than 32 bits in float, where the products are not rounded before they
     * are added. NCCL's backend rounds factor and products to the type.
     */
    SPARK_CCL_AVG = 4,
    /*
     * The sum of the ranks' values, each multiplied by that rank's own factor (spark_ccl_options)
     * and rounded to the type before it is added.
     */
    SPARK_CCL_PRE_MUL_SUM = 5
} spark_ccl_op;

/*
 * Names ranks that are about to meet, once. It holds a secret: anyone who has it can join. Pass it
 * to the other ranks, as these bytes or as text, through something that strangers cannot read.
 */
typedef struct {
    unsigned char bytes[128];
} spark_ccl_unique_id;

/* A communicator: a group of ranks; here, this rank's handle to it. */
typedef struct spark_ccl_comm spark_ccl_comm;

/* A call that was started: wait for it (spark_ccl_wait and its like), or free it
 * (spark_ccl_request_free). */
typedef uint64_t spark_ccl_request;
#define SPARK_CCL_REQUEST_NULL ((spark_ccl_request)0)

/*
 * A setting, with the name and the values of the environment variable: {"SPARK_CCL_TIMEOUT", "30"}.
 * It wins over the environment. docs/environment.md lists all of them. The strings may be freed
 * when the function has returned.
 */
typedef struct {
    const char *name;
    const char *value;
} spark_ccl_setting;

/*
 * The options of a call. NULL stands for all defaults. Set members in a copy of the defaults:
 * spark_ccl_options options = SPARK_CCL_OPTIONS_INIT; Later versions add members at the end, and
 * see by struct_size which ones a program has. An option that the library is too old for is
 * SPARK_CCL_INVALID. The call reads the options, the name and the factor before it returns.
 */
typedef struct {
    size_t struct_size;
    /*
     * Not NULL: the call returns when it has begun, and *request is what to wait for. Its buffers
     * are in use until then. *request is SPARK_CCL_REQUEST_NULL if the call fails at once.
     */
    spark_ccl_request *request;
    /*
     * Not NULL: a name for the call, which all ranks give alike, and which errors show. A
     * difference is SPARK_CCL_REMOTE.
     */
    const char *name;
    /* For SPARK_CCL_PRE_MUL_SUM, and only then: one element of the call's type. Ranks may have
     * different ones. */
    const void *factor;
    /*
     * Not 0: the call's buffers lie in memory of spark_ccl_alloc, each at the same offset on all
     * ranks, and the call may go without copies. All ranks must say so of the same calls;
     * SPARK_CCL_INVALID if a buffer lies elsewhere. In such calls spark_ccl_all_gather is in place
     * on all ranks or on none, and spark_ccl_gather and spark_ccl_scatter on none.
     */
    int registered;
    /*
     * With `on_device`, and only then: the CUDA stream that the call is enqueued in, a cudaStream_t
     * or CUstream. NULL and cudaStreamLegacy are the legacy default stream. With
     * cudaStreamPerThread the call runs in a stream of the library's, which waits for the calling
     * thread's default stream, and for which that stream waits.
     */
    void *stream;
    /*
     * Not 0: the call's buffers are device memory, and the call is enqueued in `stream`. All ranks
     * must say so of the same calls. Neither `request` nor `registered` goes with it.
     */
    size_t on_device;
    /*
     * Not 0: how long this call may take, in milliseconds, instead of the communicator's timeout.
     * When it passes, the communicator fails, as with its own.
     */
    size_t timeout;
} spark_ccl_options;
#define SPARK_CCL_OPTIONS_INIT {sizeof(spark_ccl_options), NULL, NULL, NULL, 0, NULL, 0, 0}

/*
 * Communicators
 */

/*
 * Makes a new id, for one meeting. This process serves the meeting of the ranks, so it must live
 * until they have met, within SPARK_CCL_INIT_TIMEOUT (120 seconds). It is usually rank 0, but need
 * not be a rank. It follows the environment; settings of a communicator do not concern it.
 */
spark_ccl_result spark_ccl_get_unique_id(spark_ccl_unique_id *id);

/*
 * Writes the id as text: 256 hexadecimal digits, and a null character. So it can be passed by a
 * file, a key-value store, or SPARK_CCL_UNIQUE_ID in the environment. `text` has room for `size`
 * characters, SPARK_CCL_UNIQUE_ID_TEXT at least.
 */
#define SPARK_CCL_UNIQUE_ID_TEXT 257
spark_ccl_result spark_ccl_unique_id_to_text(const spark_ccl_unique_id *id, char *text, size_t size);

/* Reads such a text, also with spaces or line ends around it. SPARK_CCL_INVALID if it is no id, or
 * is damaged. */
spark_ccl_result spark_ccl_unique_id_from_text(const char *text, spark_ccl_unique_id *id);

/*
 * Joins the `size` ranks that share `id`, as rank `rank`, which is 0 to size - 1. Returns when all
 * ranks have come. `settings` has `settings_count` elements, and may be NULL if that is 0. *comm is
 * the new communicator, or NULL on failure.
 */
spark_ccl_result spark_ccl_comm_create(const spark_ccl_unique_id *id, int rank, int size,
                                       const spark_ccl_setting *settings, size_t settings_count,
                                       spark_ccl_comm **comm);

/*
 * Joins the ranks that a launcher has started: torchrun, mpirun of Open MPI or MPICH, srun, or
 * whatever sets SPARK_CCL_RANK, SPARK_CCL_SIZE and SPARK_CCL_UNIQUE_ID. SPARK_CCL_INVALID without a
 * launcher. `settings` and `comm` are as in spark_ccl_comm_create.
 */
spark_ccl_result spark_ccl_comm_from_env(const spark_ccl_setting *settings, size_t settings_count,
                                         spark_ccl_comm **comm);

/*
 * Makes a new communicator for each color (0 or more), of the ranks that pass it. They are numbered
 * in the order of `key`, and with equal keys in the order that they have in `comm`. All ranks of
 * `comm` call this. *part is the new communicator; NULL on failure, and, with success, on a rank
 * whose color is below 0. `comm` stays as it is: either may be destroyed first.
 */
spark_ccl_result spark_ccl_comm_split(spark_ccl_comm *comm, int color, int key,
                                      spark_ccl_comm **part);

/*
 * Makes a communicator of the ranks that are left, in their order, usually after `comm` has failed.
 * All of these ranks call this, and agree on who is left out: ranks that have died or are lost, and
 * ranks that are stopped. A rank that answers is waited for, for SPARK_CCL_INIT_TIMEOUT at most. Of
 * the ranks that have not ended for sure, more than half must be left, or half with the lowest rank
 * among them. *rest is the new communicator, or NULL on failure. It is SPARK_CCL_REMOTE on a rank
 * that the others have left out ("goes on without this rank"), and where the ranks do not agree
 * ("no agreement within"); only after the latter may it be called again. `comm` stays as it is:
 * destroy it.
 */
spark_ccl_result spark_ccl_comm_recover(spark_ccl_comm *comm, spark_ccl_comm **rest);

/*
 * As spark_ccl_comm_recover, but the program says who is left out: besides ranks that have died,
 * the `lost_count` ranks in `lost`, by their numbers in `comm`. All ranks must name the same.
 * `lost` may be NULL if there are none. Two groups that name each other both go on.
 */
spark_ccl_result spark_ccl_comm_shrink(spark_ccl_comm *comm, const int *lost, size_t lost_count,
                                       spark_ccl_comm **rest);

/* This rank's number, 0 to size - 1. */
spark_ccl_result spark_ccl_comm_rank(spark_ccl_comm *comm, int *rank);

/* The number of ranks. */
spark_ccl_result spark_ccl_comm_size(spark_ccl_comm *comm, int *size);

/*
 * Sets how long each call that begins from now on may take; not 0. Calls under way keep their time,
 * and communicators that are made from this one start with it. All ranks should set the same.
 */
spark_ccl_result spark_ccl_comm_set_timeout(spark_ccl_comm *comm, unsigned milliseconds);

/*
 * SPARK_CCL_SUCCESS while the communicator works; after it has failed, what its calls return.
 * Returns at once, unless a message lies unread because two ranks made different calls: then it
 * takes up to 1.5 s to find out which calls.
 */
spark_ccl_result spark_ccl_comm_check(spark_ccl_comm *comm);

/*
 * Makes the communicator fail on all ranks: calls under way and later ones return SPARK_CCL_REMOTE.
 * `reason` is in their texts, and may be NULL. Does not wait.
 */
spark_ccl_result spark_ccl_comm_abort(spark_ccl_comm *comm, const char *reason);

/*
 * The orderly end: waits until all ranks have called it and all started calls are done. Afterwards,
 * only wait for requests and call spark_ccl_comm_destroy; all other functions, this one included,
 * are SPARK_CCL_INVALID.
 */
spark_ccl_result spark_ccl_comm_finalize(spark_ccl_comm *comm);

/*
 * Ends the handle. The communicator, and its memory of spark_ccl_alloc, are freed when none of its
 * calls uses them and none of its requests is left; calls of other communicators with that memory
 * must be done before. If a request was freed whose call goes on, the last user of the communicator
 * waits for that call, at most SPARK_CCL_TIMEOUT. Otherwise this waits for no other rank; ranks
 * that still wait for this one get SPARK_CCL_REMOTE, which spark_ccl_comm_finalize prevents. NULL
 * is allowed.
 */
spark_ccl_result spark_ccl_comm_destroy(spark_ccl_comm *comm);

/*
 * Memory
 */

/*
 * Allocates `bytes` of memory, all 0, that the other ranks of the host and RDMA devices reach. All
 * ranks call this with the same size. *memory is aligned for all types; NULL on failure. Any part
 * of it may be a buffer of any call, like other memory. A call of this communicator goes without
 * copies if its options say `registered`. A forked child finds zeros there.
 */
spark_ccl_result spark_ccl_alloc(spark_ccl_comm *comm, size_t bytes, void **memory);

/*
 * Frees memory that spark_ccl_alloc made with this communicator. No call may use it. NULL is
 * allowed. Waits for nobody.
 */
spark_ccl_result spark_ccl_free(spark_ccl_comm *comm, void *memory);

/*
 * Device memory
 *
 * A communicator knows GPUs if it is made with the setting SPARK_CCL_BACKEND: "nccl" (NCCL does the
 * collectives), "engine" (kernels of this library's own; between GPUs that do not reach each
 * other's memory, staged through the host), or "auto" (NCCL where all ranks have it, and each a GPU
 * of its own; else the engine). All ranks set the same. Without a driver or a GPU it is not made,
 * and spark_ccl_last_error() says what is missing; all else works without CUDA. The ranks of a host
 * take its GPUs in their order; the setting SPARK_CCL_DEVICE is the number of a rank's own one.
 * Communicators that are split or shrunk from it know the same GPUs.
 *
 * A call with `on_device` in its options is enqueued, and returns. It runs after everything that
 * was enqueued in its stream before, and before everything that is enqueued there afterwards.
 * Buffers are memory that the rank's GPU has or reaches, by the driver's own account: of cudaMalloc
 * and its like, managed or pinned. The program says which kind a call is of, and the library does
 * not find it out: calls without elements have a kind, too, and managed and pinned memory could be
 * of both; calls on memory of the host never ask the driver. SPARK_CCL_INVALID, before anything is
 * enqueued, if a buffer is not memory that the GPU reaches, or is another GPU's, or is longer than
 * its memory. Mappings of the GPU's memory that follow each other are one memory.
 *
 * Lifetimes. The stream must live until the call has returned, or the outermost group has ended.
 * The buffers must stay, and be used by nobody else, until the call has run, and as long as a graph
 * that has captured it is launched. (Memory of spark_ccl_device_alloc that is freed earlier stays
 * until the call has run.) Make each call once before it is captured. Do not destroy a communicator
 * whose graph is still launched.
 *
 * Contexts. Streams and memory are of the GPU's primary context, as those of the runtime API are.
 * No function changes which context is current in the calling thread.
 *
 * Order. Calls of a communicator run one after the other, also in several streams; messages count
 * among them. All ranks enqueue the same calls in the same order. Two communicators whose calls are
 * in different orders on different ranks can wait for each other until their time is over: put such
 * calls into a group, each communicator in a stream of its own. Captured calls keep their order in
 * the graph, even if the program has put no edge between the captured streams. The program must
 * order launches: with the engine, a launch must not run beside another launch, or beside calls, of
 * the same communicator. The program must also order all other uses of the buffers, by its own
 * kernels or by another communicator: with events between the streams, or edges in a graph.
 *
 * Errors. A call returns what is wrong with it. What happens later shows in spark_ccl_stream_wait,
 * in spark_ccl_comm_check, and in later calls. When a rank dies, aborts, or is late for longer than
 * SPARK_CCL_TIMEOUT, what runs is ended on all ranks, so that no stream hangs: then the buffers are
 * undefined, and CUDA's own functions return success. So ask spark_ccl_comm_check after
 * cudaStreamSynchronize, or call spark_ccl_stream_wait instead.
 *
 * Groups. The calls on devices are enqueued together when the outermost group ends, and no call
 * waits for the end of another one before it begins; all must be of one backend. The end does not
 * wait for them. If a call of the group could not begin, none is enqueued. Their failure is
 * returned behind those of other calls.
 *
 * Limits. spark_ccl_barrier moves no data, and is of the host: wait for streams before it. With
 * NCCL, spark_ccl_all_to_all is not in place.
 */

/* The number of this rank's GPU, as of CUDA; -1 if the communicator knows none. */
spark_ccl_result spark_ccl_comm_device(spark_ccl_comm *comm, int *device);

/*
 * Waits until everything that was enqueued in a stream has run. The stream is named as in
 * spark_ccl_options. Returns what has failed there, in the communicator or in CUDA; never waits for
 * ever for another rank. Not within a group, and not for a stream that captures a graph.
 */
spark_ccl_result spark_ccl_stream_wait(spark_ccl_comm *comm, void *stream);

/*
 * Allocates `bytes` of memory of this rank's GPU, in whole pages (2 MiB). Their values are
 * undefined. The memory can be registered, and used like any other device memory. *memory is an
 * address for the GPU; NULL on failure. Only this rank calls this.
 */
spark_ccl_result spark_ccl_device_alloc(spark_ccl_comm *comm, size_t bytes, void **memory);

/*
 * Frees memory that spark_ccl_device_alloc made with this communicator, and ends its registration.
 * Waits for nothing: where calls of this library still use the memory in some stream, of whichever
 * communicator, it stays until they have run. Further calls with it are SPARK_CCL_INVALID, also
 * those of a group that is still open. The program takes care of uses that the library does not
 * see: its own kernels and copies must have run, and graphs that have captured the memory must not
 * be launched any more. NULL is allowed. spark_ccl_comm_destroy frees the rest in the same way.
 */
spark_ccl_result spark_ccl_device_free(spark_ccl_comm *comm, void *memory);

/* How device memory is registered. */
typedef enum {
    /* For this rank; others may do as they like. */
    SPARK_CCL_REGISTER_LOCAL = 0,
    /* As a symmetric window: all ranks register memory of the same length together. */
    SPARK_CCL_REGISTER_SYMMETRIC = 1
} spark_ccl_registration;

/*
 * Registers all of a memory that spark_ccl_device_alloc made, until it is freed or the communicator
 * ends. *used is 1 if NCCL makes use of the registration; `used` may be NULL. The engine takes
 * memory as it is, and uses no registration. SPARK_CCL_SYSTEM if NCCL is too old: 2.19, and 2.27
 * for windows, are new enough. Not within a group.
 */
spark_ccl_result spark_ccl_device_register(spark_ccl_comm *comm, void *memory,
                                           spark_ccl_registration kind, int *used);

/*
 * Collectives. Each is done when it returns, unless it is started (spark_ccl_options.request),
 * enqueued (spark_ccl_options.on_device), or in a group. All ranks pass the same count, type,
 * reduction and root. Each function says how long its buffers are, and on which ranks. A block is
 * `count` elements. A buffer with a block for each rank has those of rank 0 first: block p begins p
 * * count elements in. Some ranks may be in place and others not, unless a function says otherwise.
 */

/*
 * recv[i] becomes the reduction of all ranks' send[i], with the same bits on all ranks. `send` and
 * `recv` have `count` elements. In place if they are the same.
 */
spark_ccl_result spark_ccl_all_reduce(spark_ccl_comm *comm, const void *send, void *recv,
                                      size_t count, spark_ccl_dtype dtype, spark_ccl_op op,
                                      const spark_ccl_options *options);

/*
 * The root's recv[i] becomes the reduction of all ranks' send[i]. `send` and the root's `recv` have
 * `count` elements; other ranks' `recv` is ignored. In place if both are the same on the root.
 */
spark_ccl_result spark_ccl_reduce(spark_ccl_comm *comm, const void *send, void *recv, size_t count,
                                  spark_ccl_dtype dtype, spark_ccl_op op, int root,
                                  const spark_ccl_options *options);

/*
 * Copies the root's `send` to all ranks' `recv`, also the root's own. `recv` has `count` elements.
 * The root's `send` has as many; other ranks' `send` is ignored. In place if they are the same on
 * the root.
 */
spark_ccl_result spark_ccl_broadcast(spark_ccl_comm *comm, const void *send, void *recv,
                                     size_t count, spark_ccl_dtype dtype, int root,
                                     const spark_ccl_options *options);

/*
 * Block p of all ranks' `recv` becomes the `send` of rank p. `send` has `count` elements, `recv`
 * has a block for each rank. In place if `send` is this rank's block of `recv`.
 */
spark_ccl_result spark_ccl_all_gather(spark_ccl_comm *comm, const void *send, void *recv,
                                      size_t count, spark_ccl_dtype dtype,
                                      const spark_ccl_options *options);

/*
 * `recv` becomes this rank's block of the reduction of all ranks' `send`. `send` has a block for
 * each rank, `recv` has `count` elements. In place if `recv` is this rank's block of `send`; the
 * rest of `send` is then undefined.
 */
spark_ccl_result spark_ccl_reduce_scatter(spark_ccl_comm *comm, const void *send, void *recv,
                                          size_t count, spark_ccl_dtype dtype, spark_ccl_op op,
                                          const spark_ccl_options *options);

/*
 * Block p of the root's `recv` becomes the `send` of rank p. `send` has `count` elements; the
 * root's `recv` has a block for each rank; other ranks' `recv` is ignored. In place if, on the
 * root, `send` is its block of `recv`.
 */
spark_ccl_result spark_ccl_gather(spark_ccl_comm *comm, const void *send, void *recv, size_t count,
                                  spark_ccl_dtype dtype, int root, const spark_ccl_options *options);

/*
 * `recv` becomes this rank's block of the root's `send`. `recv` has `count` elements; the root's
 * `send` has a block for each rank; other ranks' `send` is ignored. In place if, on the root,
 * `recv` is its block of `send`.
 */
spark_ccl_result spark_ccl_scatter(spark_ccl_comm *comm, const void *send, void *recv, size_t count,
                                   spark_ccl_dtype dtype, int root,
                                   const spark_ccl_options *options);

/*
 * Block p of `recv` becomes this rank's block of the `send` of rank p. Both have a block for each
 * rank. In place if they are the same. With three or more ranks, either all are in place or none.
 */
spark_ccl_result spark_ccl_all_to_all(spark_ccl_comm *comm, const void *send, void *recv,
                                      size_t count, spark_ccl_dtype dtype,
                                      const spark_ccl_options *options);

/*
 * As spark_ccl_all_to_all, with blocks of any lengths. The two ranks of a block must pass the same
 * length. All arrays have an element for each rank. send_counts[p] elements of `send`, from element
 * send_begins[p] on, go to rank p. recv_counts[p] elements come from rank p, and go to `recv` from
 * element recv_begins[p] on. Where begins are NULL, blocks follow each other. `send` and `recv` are
 * as long as their last blocks reach. Blocks of `send` may overlap; those of `recv` must not: the
 * call is refused. Never in place. The arrays may be freed when the function has returned.
 */
spark_ccl_result spark_ccl_all_to_all_v(spark_ccl_comm *comm, const void *send,
                                        const size_t *send_counts, const size_t *send_begins,
                                        void *recv, const size_t *recv_counts,
                                        const size_t *recv_begins, spark_ccl_dtype dtype,
                                        const spark_ccl_options *options);

/* Is done on no rank before all ranks have called it. */
spark_ccl_result spark_ccl_barrier(spark_ccl_comm *comm, const spark_ccl_options *options);

/*
 * Messages between two ranks. `to` and `from` are ranks; the receiver passes the sender's count and
 * type. A short message may be on its way when spark_ccl_send returns; for a long one it waits
 * until the receiver has called spark_ccl_recv. So two ranks that send to each other must have both
 * calls under way: in a group, or started.
 */
spark_ccl_result spark_ccl_send(spark_ccl_comm *comm, const void *send, size_t count,
                                spark_ccl_dtype dtype, int to, const spark_ccl_options *options);
spark_ccl_result spark_ccl_recv(spark_ccl_comm *comm, void *recv, size_t count,
                                spark_ccl_dtype dtype, int from, const spark_ccl_options *options);

/*
 * Whether a message from rank `from` has come: *there is 1, and *count and *dtype are its elements
 * and their type. Else *there and *count are 0; also while a spark_ccl_recv that was called before
 * waits for it. Does not wait. Where several threads receive from the same rank, another may get
 * the message first.
 */
spark_ccl_result spark_ccl_probe(spark_ccl_comm *comm, int from, size_t *count,
                                 spark_ccl_dtype *dtype, int *there);

/*
 * Groups. The calls that a thread makes between start and the matching end go on side by side. Each
 * begins at once; the outermost end waits for all of them. It returns the first failure, in the
 * order of the calls, also of a call that could not begin: such a call says so itself, and the
 * group stays open. So a group is always ended, whatever happens in it.
 *
 * A call with a request is not the group's. Functions that wait for other ranks themselves are
 * SPARK_CCL_INVALID within a group: spark_ccl_comm_create, spark_ccl_comm_from_env,
 * spark_ccl_comm_split, spark_ccl_comm_recover, spark_ccl_comm_shrink, spark_ccl_comm_finalize and
 * spark_ccl_alloc. A communicator that is destroyed stays until the group's calls are done, or
 * enqueued if they are on devices. It then waits 2 s for calls on devices, and aborts the rest:
 * wait for the streams first.
 *
 * The thread that has started a group must end it. If it ends before, nobody can wait for the
 * group's calls but spark_ccl_comm_finalize: until then their buffers must stay. A child that is
 * forked has no open group.
 */
spark_ccl_result spark_ccl_group_start(void);
spark_ccl_result spark_ccl_group_end(void);

/*
 * Started calls. They go on while this process waits or tests in any function of the library; with
 * SPARK_CCL_PROGRESS_THREAD=1 also by themselves. Any thread may wait for a request, but one at a
 * time.
 */

/*
 * Waits for a started call, and returns its result. Afterwards *request is SPARK_CCL_REQUEST_NULL,
 * whatever the result; waiting for that does nothing.
 */
spark_ccl_result spark_ccl_wait(spark_ccl_request *request);

/* Waits for all of them, as spark_ccl_wait does, also if one has failed; returns the first failure
 * in their order. */
spark_ccl_result spark_ccl_wait_all(spark_ccl_request *requests, size_t count);

/*
 * Waits until one of the requests is done, or cannot be waited for. *index is its place, whatever
 * is returned; otherwise this is spark_ccl_wait for that request. Requests that are
 * SPARK_CCL_REQUEST_NULL are passed over; *index is `count` if all are.
 */
spark_ccl_result spark_ccl_wait_any(spark_ccl_request *requests, size_t count, size_t *index);

/*
 * Frees a request without waiting: its call goes on, and its buffers must stay until
 * spark_ccl_comm_finalize has returned. Free it before spark_ccl_comm_destroy: later, this waits
 * for the call. *request is SPARK_CCL_REQUEST_NULL then.
 */
spark_ccl_result spark_ccl_request_free(spark_ccl_request *request);

/*
 * Whether a started call is done. If it is, or on any error, *done is 1, and the result and
 * *request are as after spark_ccl_wait. Else *done is 0, and the call has gone on as far as it can.
 */
spark_ccl_result spark_ccl_test(spark_ccl_request *request, int *done);

/*
 * Errors and logs
 */

/* A few words for a result, also for one that is unknown. Never NULL; not to be freed. */
const char *spark_ccl_result_string(spark_ccl_result result);

/*
 * The text of the last failure in this thread: who, what was expected, what was seen, what to do.
 * Empty if there was none; success leaves it as it is. Valid until the next failure in the same
 * thread, or its end; never NULL, not to be freed.
 */
const char *spark_ccl_last_error(void);

/*
 * Takes a line of the log, without a line end. The line is valid until the function returns; `data`
 * is the program's.
 */
typedef void (*spark_ccl_log_function)(const char *line, void *data);

/*
 * Passes log lines to a function until the process ends. `filter` has the form of SPARK_CCL_LOG;
 * NULL means "info". Call this before communicators are made: SPARK_CCL_INVALID if log lines go
 * somewhere already. Any thread of the library or of the program may call the function, several at
 * once. It may call this library. While it blocks, it holds up the call in whose thread it runs,
 * and no other; lines of the library's own threads may be lost meanwhile.
 */
spark_ccl_result spark_ccl_set_log(spark_ccl_log_function function, void *data, const char *filter);

#ifdef __cplusplus
}
#endif

#endif
