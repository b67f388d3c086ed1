/*
 * How a wait within the library that SPARK_CCL_NCCL_FALLBACK names ends.
 *
 *   hangs FILE RANK SIZE      HOW is abort, deadline, death or leave (of the last rank), failure
 *                             (there); later: its death once nobody waits; finalized: after the
 *                             finalize; end: it waits there in the end; exit: as the program ends;
 *                             use: an abort, while a thread waits there; quit: the same, and then
 *                             the program ends at once
 */
#include "ranks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static char message[4096];

/* Waits for all ranks in the other library. */
static void *registers(void *of)
{
    char buffer[64];
    ncclWindow_t window;
    ncclResult_t ended = ncclCommWindowRegister(of, buffer, sizeof buffer, &window, 0);
    require(ended != ncclSuccess, "a window without the others");
    snprintf(message, sizeof message, "%s", ncclGetLastError(NULL));
    return NULL;
}

/* The last rank goes on once the others have called this. */
static void tell(void)
{
    int32_t done = 1;
    SUCCEEDS(ncclSend(&done, 1, ncclInt32, size - 1, comm, NULL));
}

static void hear(void)
{
    int32_t done;
    for (int other = 0; other < size - 1; other++) {
        SUCCEEDS(ncclRecv(&done, 1, ncclInt32, other, comm, NULL));
    }
}

/* The last rank dies once all have communicators of the other library. */
static void die_later(atomic_int *ends)
{
    char buffer[64];
    int32_t word = 0;
    ncclWindow_t window;
    SUCCEEDS(ncclCommWindowRegister(comm, buffer, sizeof buffer, &window, 0));
    if (rank == size - 1) {
        hear();
        raise(SIGKILL);
    }
    tell();
    FAILS(ncclAllReduce(&word, &word, 1, ncclInt32, ncclSum, comm, NULL), ncclRemoteError,
          "rank 2");
    SUCCEEDS(ncclCommDestroy(comm));
    while (atomic_load(ends) == 0) {
        pause_briefly();
    }
}

/* The last rank dies, or ends its communicator and waits there, once all have communicators of the
 * other library for a part of ours. */
static void end_a_part(int dies, atomic_int *ends)
{
    char buffer[64];
    int32_t word = 0;
    ncclWindow_t window;
    ncclComm_t part = NULL;
    SUCCEEDS(ncclCommSplit(comm, 0, rank, &part, NULL));
    SUCCEEDS(ncclCommWindowRegister(part, buffer, sizeof buffer, &window, 0));
    if (dies) {
        SUCCEEDS(ncclCommFinalize(part));
    }
    if (rank == size - 1) {
        if (!dies) {
            SUCCEEDS(ncclCommDestroy(part));
        }
        hear();
        require(!dies || raise(SIGKILL) == 0, "its death");
        return;
    }
    if (dies) {
        tell();
    }
    ncclComm_t needs = dies ? comm : part;
    FAILS(ncclAllReduce(&word, &word, 1, ncclInt32, ncclSum, needs, NULL), ncclRemoteError,
          "rank 2");
    if (dies) {
        SUCCEEDS(ncclCommDestroy(part));
        while (atomic_load(ends) == 0) {
            pause_briefly();
        }
    } else {
        tell();
    }
}

static void *registers_in_vain(void *of)
{
    char buffer[4];
    ncclWindow_t window;
    FAILS(ncclCommWindowRegister(of, buffer, sizeof buffer, &window, 0), ncclInternalError,
          "ncclCommWindowRegister of NCCL");
    return NULL;
}

/* The same in a program that ends meanwhile: nothing else runs beside its end. */
static void *registers_and_stays(void *of)
{
    char buffer[4];
    ncclWindow_t window;
    (void)ncclCommWindowRegister(of, buffer, sizeof buffer, &window, 0);
    for (;;) {
        pause();
    }
    return NULL;
}

/* Each rank aborts its communicator while a thread waits in the other library with it, and then
 * waits for that, if it does. */
static void abort_in_use(int waits, atomic_int *hanging, atomic_int *ends)
{
    char buffer[64];
    ncclWindow_t window;
    pthread_t thread;
    SUCCEEDS(ncclCommWindowRegister(comm, buffer, sizeof buffer, &window, 0));
    void *(*body)(void *) = waits ? registers_in_vain : registers_and_stays;
    require(pthread_create(&thread, NULL, body, comm) == 0, "pthread_create");
    while (atomic_load(hanging) == 0) {
        pause_briefly();
    }
    SUCCEEDS(ncclCommAbort(comm));
    if (waits) {
        require(pthread_join(thread, NULL) == 0, "pthread_join");
        require(atomic_load(ends) == 1, "its end");
    }
}

/* The communicator that is destroyed after the handlers at exit, and how many have ended. */
static ncclComm_t late;
static atomic_int *ended;

__attribute__((destructor)) static void destroy_late(void)
{
    if (late != NULL) {
        SUCCEEDS(ncclCommDestroy(late));
        while (atomic_load(ended) == 0) {
            pause_briefly();
        }
    }
}

static void exit_later(atomic_int *ends)
{
    char buffer[64];
    ncclWindow_t window;
    SUCCEEDS(ncclCommWindowRegister(comm, buffer, sizeof buffer, &window, 0));
    late = comm;
    ended = ends;
}

/* What the last rank does, the others may learn before they wait there. */
static void wait_in_vain(const char *how, atomic_int *hanging)
{
    int is_last = rank == size - 1, leaves = strcmp(how, "leave") == 0;
    pthread_t thread;
    const char *words = "rank 2";
    if (is_last && leaves) {
        hear();
        SUCCEEDS(ncclCommDestroy(comm));
        return;
    }
    require(pthread_create(&thread, NULL, registers, comm) == 0, "pthread_create");
    if (strcmp(how, "deadline") == 0) {
        words = "have not met in time";
    } else if (is_last && strcmp(how, "failure") == 0) {
        words = "the last error of the fallback";
    } else if (is_last || leaves) {
        while (!atomic_load(hanging)) {
            pause_briefly();
        }
        if (strcmp(how, "death") == 0) {
            raise(SIGKILL);
        }
        words = "was left behind in a thread";
        if (leaves) {
            tell();
        } else {
            SUCCEEDS(ncclCommAbort(comm));
        }
    }
    require(pthread_join(thread, NULL) == 0, "pthread_join");
    require(strstr(message, words) != NULL, message);
    require(!leaves || strstr(message, "rank 2") != NULL, message);
    if (strcmp(how, "abort") != 0 || !is_last) {
        SUCCEEDS(ncclCommDestroy(comm));
    }
}

int main(int argc, char **argv)
{
    require(argc == 4, "usage: hangs FILE RANK SIZE");
    rank = atoi(argv[2]);
    size = atoi(argv[3]);
    const char *how = getenv("HOW");
    alarm(100);
    void *library = dlopen(getenv("SPARK_CCL_NCCL_FALLBACK"), RTLD_NOW | RTLD_LOCAL);
    require(library != NULL, "the other library");
    SUCCEEDS(ncclCommInitRank(&comm, size, meet(argv[1]), rank));
    if (strcmp(how, "later") == 0) {
        die_later(dlsym(library, "ends"));
    } else if (strcmp(how, "finalized") == 0 || strcmp(how, "end") == 0) {
        end_a_part(strcmp(how, "finalized") == 0, dlsym(library, "ends"));
    } else if (strcmp(how, "use") == 0 || strcmp(how, "quit") == 0) {
        abort_in_use(strcmp(how, "use") == 0, dlsym(library, "hanging"), dlsym(library, "ends"));
    } else if (strcmp(how, "exit") == 0) {
        exit_later(dlsym(library, "ends"));
    } else {
        wait_in_vain(how, dlsym(library, "hanging"));
    }
    printf("rank %d of %d: right\n", rank, size);
    return 0;
}
