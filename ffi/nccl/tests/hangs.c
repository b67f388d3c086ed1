/*
 * How a wait within the library that SPARK_CCL_NCCL_FALLBACK names ends.
 *
 *   hangs FILE RANK SIZE      HOW is abort, deadline, death (of the last rank), or failure (there)
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

int main(int argc, char **argv)
{
    require(argc == 4, "usage: hangs FILE RANK SIZE");
    rank = atoi(argv[2]);
    size = atoi(argv[3]);
    const char *how = getenv("HOW");
    int is_last = rank == size - 1;
    pthread_t thread;
    alarm(100);
    void *library = dlopen(getenv("SPARK_CCL_NCCL_FALLBACK"), RTLD_NOW | RTLD_LOCAL);
    require(library != NULL, "the other library");
    atomic_int *hanging = dlsym(library, "hanging");
    SUCCEEDS(ncclCommInitRank(&comm, size, meet(argv[1]), rank));
    require(pthread_create(&thread, NULL, registers, comm) == 0, "pthread_create");
    /* What the last rank does, the others may learn before they wait there. */
    const char *words = "rank 2";
    if (strcmp(how, "deadline") == 0) {
        words = "have not met in time";
    } else if (is_last && strcmp(how, "failure") == 0) {
        words = "the last error of the fallback";
    } else if (is_last) {
        while (!atomic_load(hanging)) {
            pause_briefly();
        }
        if (strcmp(how, "death") == 0) {
            raise(SIGKILL);
        }
        words = "was left behind in a thread";
        SUCCEEDS(ncclCommAbort(comm));
    }
    require(pthread_join(thread, NULL) == 0, "pthread_join");
    require(strstr(message, words) != NULL, message);
    if (strcmp(how, "abort") != 0 || !is_last) {
        SUCCEEDS(ncclCommDestroy(comm));
    }
    printf("rank %d of %d: right\n", rank, size);
    return 0;
}
