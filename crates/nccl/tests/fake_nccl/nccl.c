/* A fake libnccl that communicates nothing: it records its calls, and returns what the test has
 * set. It shows what is passed to NCCL, and in which order; it shows nothing about NCCL itself.
 *
 *   -DVERSION=23007      its version; functions that came later are left out
 *   -DWITHOUT_SEND       leaves out a function that every version has
 */
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SINCE(version) (VERSION >= (version))

enum { SUCCESS = 0, INVALID_ARGUMENT = 4, IN_PROGRESS = 7 };

typedef struct {
    char internal[128];
} Id;

typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *comm_name;
    int collnet_enable, cta_policy;
} Config;

typedef struct {
    int rank, size, device, blocking, ended;
} *Comm;

/* Set by the tests. */
static char journal[1 << 16];
static char failing[64];
static int failure;
static int polls;
static int async_result;

const char *fake_journal(void) { return journal; }
void fake_clear(void) { journal[0] = 0; }
/* Makes the next call of a function return this result. */
void fake_fail(const char *name, int result) {
    snprintf(failing, sizeof failing, "%s", name);
    failure = result;
}
/* Makes each call of a nonblocking communicator complete only after this many polls, which count in
 * a group from its end on. */
void fake_progress(int looks) { polls = looks; }
/* Makes communicators report this error. */
void fake_async(int result) { async_result = result; }

static void note(const char *format, ...) {
    size_t used = strlen(journal);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(journal + used, sizeof journal - used, format, arguments);
    va_end(arguments);
    strncat(journal, "\n", sizeof journal - strlen(journal) - 1);
}

static int depth, looks, pending, refused;

/* Where to write handles when a group ends, or when the call in progress completes. */
static struct {
    void **slot, *value;
} later[16];
static int late;
static void write_late(void) {
    while (late) late--, *later[late].slot = later[late].value;
}

static int scripted(const char *name) {
    if (strcmp(failing, name)) return SUCCESS;
    failing[0] = 0;
    return failure;
}

/* The result of a call of a communicator. */
static int done(const char *name, Comm comm) {
    int result = scripted(name);
    if (comm->ended) note("%s after the end", name);
    if (result || comm->blocking || !polls) return result;
    looks = polls;
    pending = 1;
    return IN_PROGRESS;
}

/* The result of a call that runs in the background, but returns success at once. */
static int begun(const char *name, Comm comm) {
    int result = done(name, comm);
    return result == IN_PROGRESS ? SUCCESS : result;
}

static void give(void **slot, void *value, Comm comm) {
    int now = !depth && (comm->blocking || !polls);
    *slot = now ? value : NULL;
    if (now) return;
    later[late].slot = slot;
    later[late++].value = value;
}

static Comm make(int size, int rank, int device, int blocking) {
    Comm comm = calloc(1, sizeof *comm);
    comm->size = size, comm->rank = rank, comm->device = device, comm->blocking = blocking;
    return comm;
}

static const char *text(const char *text) { return text ? text : "-"; }

static void note_config(const Config *config) {
    if (!config) return;
    note("  config %#x %u blocking %d cga %d ctas %d %d net %s share %d class %d name %s policy %d",
         config->magic, config->version, config->blocking, config->cga_cluster_size,
         config->min_ctas, config->max_ctas, text(config->net_name), config->split_share,
         config->traffic_class, text(config->comm_name), config->cta_policy);
}

static int makes(const char *name, Comm *made, int size, int rank, const Config *config) {
    int result = scripted(name);
    int blocking = !config || config->blocking != 0;
    note_config(config);
    *made = NULL;
    if (result == INVALID_ARGUMENT) return result;
    *made = make(size, rank, rank, blocking);
    return result ? result : done(name, *made);
}

int ncclGetVersion(int *version) {
    *version = VERSION;
    return SUCCESS;
}
const char *ncclGetErrorString(int result) { return result == 3 ? "internal error" : "other error"; }
static char last_error[1024] = "the cable is out";
const char *ncclGetLastError(Comm comm) {
    (void)comm;
    return last_error;
}
/* Writes another last error, of characters of two bytes that begin at bytes of this remainder. */
void fake_say(int remainder) {
    for (int i = 0; i < 1022; i++)
        last_error[i] = i < remainder || i >= 1022 - remainder ? 'e'
                        : i % 2 == remainder                   ? '\xc3'
                                                               : '\xa9';
}
int ncclGetUniqueId(Id *id) {
    for (int i = 0; i < 128; i++) id->internal[i] = (char)(i + 100);
    return scripted("ncclGetUniqueId");
}

static int is_whole(Id id) {
    for (int i = 0; i < 128; i++)
        if (id.internal[i] != (char)(i + 100)) return 0;
    return 1;
}

int ncclCommInitRankConfig(Comm *comm, int size, Id id, int rank, Config *config) {
    note("ncclCommInitRankConfig rank %d of %d id %d", rank, size, is_whole(id));
    return makes("ncclCommInitRankConfig", comm, size, rank, config);
}
int ncclCommInitAll(Comm *comms, int count, const int *devices) {
    note("ncclCommInitAll %d", count);
    for (int i = 0; i < count; i++) comms[i] = make(count, i, devices[i], 1);
    return scripted("ncclCommInitAll");
}
int ncclCommSplit(Comm comm, int color, int key, Comm *made, Config *config) {
    note("ncclCommSplit #%d color %d key %d", comm->rank, color, key);
    note_config(config);
    give((void **)made, color < 0 ? NULL : make(comm->size / 2, key, comm->device, comm->blocking), comm);
    return begun("ncclCommSplit", comm);
}

#define OF_COMM(name)                                                                              \
    int name(Comm comm) {                                                                          \
        note(#name " #%d", comm->rank);                                                            \
        return done(#name, comm);                                                                  \
    }
#define ENDS_COMM(name)                                                                            \
    int name(Comm comm) {                                                                          \
        note(#name " #%d%s", comm->rank, comm->ended ? " again" : "");                             \
        comm->ended = 1;                                                                           \
        write_late();                                                                              \
        return scripted(#name);                                                                    \
    }
#define ASKS_COMM(name, field)                                                                     \
    int name(Comm comm, int *value) {                                                              \
        *value = comm->field;                                                                      \
        return scripted(#name);                                                                    \
    }
OF_COMM(ncclCommFinalize)
ENDS_COMM(ncclCommDestroy)
ENDS_COMM(ncclCommAbort)
ASKS_COMM(ncclCommCount, size)
ASKS_COMM(ncclCommUserRank, rank)
ASKS_COMM(ncclCommCuDevice, device)

int ncclCommGetAsyncError(Comm comm, int *result) {
    if (comm->ended) note("ncclCommGetAsyncError after the end");
    *result = async_result;
    if (pending && (depth || looks-- > 0)) *result = IN_PROGRESS;
    else pending = 0, write_late();
    return scripted("ncclCommGetAsyncError");
}
int ncclGroupStart(void) {
    int result = scripted("ncclGroupStart");
    note("ncclGroupStart");
    if (!result) depth++;
    return result;
}
int ncclGroupEnd(void) {
    note("ncclGroupEnd");
    if (--depth) return SUCCESS;
    if (refused) {
        refused = pending = 0;
        return INVALID_ARGUMENT;
    }
    if (!pending) write_late();
    int result = scripted("ncclGroupEnd");
    return result ? result : pending ? IN_PROGRESS : SUCCESS;
}

int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, Comm comm) {
    static int last = 4;
    note("ncclRedOpCreatePreMulSum %g type %d residence %d #%d", *(float *)scalar, type, residence,
         comm->rank);
    *op = last += 5;
    return done("ncclRedOpCreatePreMulSum", comm);
}
int ncclRedOpDestroy(int op, Comm comm) {
    note("ncclRedOpDestroy %d #%d", op, comm->rank);
    return done("ncclRedOpDestroy", comm);
}

#define REDUCES(name)                                                                              \
    int name(void *send, void *recv, size_t count, int type, int op, Comm comm, void *stream) {    \
        note(#name " %p %p %zu type %d op %d #%d stream %p", send, recv, count, type, op,          \
             comm->rank, stream);                                                                  \
        return done(#name, comm);                                                                  \
    }
#define MOVES(name)                                                                                \
    int name(void *send, void *recv, size_t count, int type, Comm comm, void *stream) {            \
        note(#name " %p %p %zu type %d #%d stream %p", send, recv, count, type, comm->rank,        \
             stream);                                                                              \
        return done(#name, comm);                                                                  \
    }
#define ROOTED(name)                                                                               \
    int name(void *send, void *recv, size_t count, int type, int root, Comm comm, void *stream) {  \
        note(#name " %p %p %zu type %d root %d #%d stream %p", send, recv, count, type, root,      \
             comm->rank, stream);                                                                  \
        return done(#name, comm);                                                                  \
    }
#define WITH_PEER(name)                                                                            \
    int name(void *buffer, size_t count, int type, int peer, Comm comm, void *stream) {            \
        note(#name " %p %zu type %d peer %d #%d stream %p", buffer, count, type, peer, comm->rank, \
             stream);                                                                              \
        return done(#name, comm);                                                                  \
    }
int ncclAllReduce(void *send, void *recv, size_t count, int type, int op, Comm comm, void *stream) {
    /* Like NCCL: a refused call makes the group fail. */
    if (!comm) {
        note("ncclAllReduce without a communicator");
        refused = depth > 0;
        return INVALID_ARGUMENT;
    }
    note("ncclAllReduce %p %p %zu type %d op %d #%d stream %p", send, recv, count, type, op, comm->rank,
         stream);
    return done("ncclAllReduce", comm);
}
REDUCES(ncclReduceScatter)
MOVES(ncclAllGather)
ROOTED(ncclBroadcast)
WITH_PEER(ncclRecv)
#ifndef WITHOUT_SEND
WITH_PEER(ncclSend)
#endif
int ncclReduce(void *send, void *recv, size_t count, int type, int op, int root, Comm comm,
               void *stream) {
    note("ncclReduce %p %p %zu type %d op %d root %d #%d stream %p", send, recv, count, type, op,
         root, comm->rank, stream);
    return done("ncclReduce", comm);
}

#if SINCE(21901)
int ncclMemAlloc(void **start, size_t bytes) {
    note("ncclMemAlloc %zu", bytes);
    *start = (void *)0x7000;
    return scripted("ncclMemAlloc");
}
int ncclMemFree(void *start) {
    note("ncclMemFree %p", start);
    return scripted("ncclMemFree");
}
int ncclCommRegister(Comm comm, void *start, size_t bytes, void **handle) {
    note("ncclCommRegister %p %zu #%d", start, bytes, comm->rank);
    *handle = (void *)0x51;
    return done("ncclCommRegister", comm);
}
int ncclCommDeregister(Comm comm, void *handle) {
    note("ncclCommDeregister %p #%d", handle, comm->rank);
    return done("ncclCommDeregister", comm);
}
#endif

#if SINCE(22304)
int ncclCommInitRankScalable(Comm *comm, int size, int rank, int count, Id *ids, Config *config) {
    note("ncclCommInitRankScalable rank %d of %d ids %d last %d", rank, size, count,
         is_whole(ids[count - 1]));
    return makes("ncclCommInitRankScalable", comm, size, rank, config);
}
#endif

#if SINCE(22703)
int ncclCommShrink(Comm comm, int *ranks, int count, Comm *made, Config *config, int flags) {
    note("ncclCommShrink #%d without %d first %d flags %d", comm->rank, count, count ? ranks[0] : -1,
         flags);
    note_config(config);
    give((void **)made, make(comm->size - count, 0, comm->device, comm->blocking), comm);
    return begun("ncclCommShrink", comm);
}
int ncclCommWindowRegister(Comm comm, void *start, size_t bytes, void **window, int flags) {
    note("ncclCommWindowRegister %p %zu flags %d #%d", start, bytes, flags, comm->rank);
    give(window, (void *)0x61, comm);
    return begun("ncclCommWindowRegister", comm);
}
int ncclCommWindowDeregister(Comm comm, void *window) {
    note("ncclCommWindowDeregister %p #%d", window, comm->rank);
    return done("ncclCommWindowDeregister", comm);
}
#endif

#if SINCE(22803)
MOVES(ncclAlltoAll)
ROOTED(ncclGather)
ROOTED(ncclScatter)
#endif

#if SINCE(22807)
int ncclCommRevoke(Comm comm, int flags) {
    note("ncclCommRevoke #%d flags %d", comm->rank, flags);
    return done("ncclCommRevoke", comm);
}
#endif

#if SINCE(22902)
int ncclCommGetUniqueId(Comm comm, Id *id) {
    note("ncclCommGetUniqueId #%d", comm->rank);
    ncclGetUniqueId(id);
    return done("ncclCommGetUniqueId", comm);
}
int ncclCommGrow(Comm comm, int size, const Id *id, int rank, Comm *made, Config *config) {
    note("ncclCommGrow #%d to %d id %d rank %d", comm ? comm->rank : -1, size,
         id ? is_whole(*id) : -1, rank);
    if (!comm) {
        int result = makes("ncclCommGrow", made, size, rank, config);
        return result == IN_PROGRESS ? SUCCESS : result;
    }
    note_config(config);
    *made = make(size, comm->rank, comm->device, comm->blocking);
    return begun("ncclCommGrow", comm);
}
#endif

#if SINCE(22907)
int ncclCommMemStats(Comm comm, int which, uint64_t *value) {
    note("ncclCommMemStats %d #%d", which, comm->rank);
    *value = 1 + which;
    return done("ncclCommMemStats", comm);
}
#endif
