/*
 * What a library answers to arguments that are wrong: a line for each call, with its code. All
 * libraries with NCCL's ABI should answer alike.
 *
 *   answers LIBRARY
 */
#define _GNU_SOURCE
#include "abi.h"

#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A function of the library, of the type that it is declared with. */
#define OF(name) ((__typeof__(&name))(uintptr_t)found(library, #name))

static void *found(void *library, const char *name)
{
    void *function = dlsym(library, name);
    if (function == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return function;
}

/* In a process of its own, since some libraries crash, and some never return. */
#define ANSWER(name, what, ...)                                                                    \
    do {                                                                                           \
        pid_t child = fork();                                                                      \
        if (child == 0) {                                                                          \
            alarm(20);                                                                             \
            (void)prctl(PR_SET_DUMPABLE, 0); /* Crashes leave no file. */                          \
            printf("%s, %s: %d\n", #name, what, OF(name)(__VA_ARGS__));                            \
            fflush(stdout);                                                                        \
            _exit(0);                                                                              \
        }                                                                                          \
        int status = 0;                                                                            \
        if (waitpid(child, &status, 0) != child || status != 0) {                                  \
            printf("%s, %s: crashes\n", #name, what);                                              \
            fflush(stdout);                                                                        \
        }                                                                                          \
    } while (0)

/* A communicator of another library: NCCL recognises its own by their contents. */
static char foreign[1 << 20];

static void about(void *library, ncclComm_t comm, const char *what)
{
    int number = 0;
    void *token = NULL;
    ncclResult_t state = ncclSuccess;
    ncclComm_t other = NULL;
    ncclWindow_t window = NULL;
    ncclRedOp_t op = ncclSum;
    float factor = 2;
    char buffer[64] = {0};
    ANSWER(ncclCommCount, what, comm, &number);
    ANSWER(ncclCommUserRank, what, comm, &number);
    ANSWER(ncclCommCuDevice, what, comm, &number);
    ANSWER(ncclCommGetAsyncError, what, comm, &state);
    ANSWER(ncclCommRegister, what, comm, buffer, 64, &token);
    ANSWER(ncclCommDeregister, what, comm, buffer);
    ANSWER(ncclCommWindowRegister, what, comm, buffer, 64, &window, 0);
    ANSWER(ncclCommWindowDeregister, what, comm, NULL);
    ANSWER(ncclCommSplit, what, comm, 0, 0, &other, NULL);
    ANSWER(ncclCommShrink, what, comm, &number, 1, &other, NULL, 0);
    ANSWER(ncclRedOpCreatePreMulSum, what, &op, &factor, ncclFloat32, ncclScalarHostImmediate,
           comm);
    ANSWER(ncclRedOpDestroy, what, ncclAvg, comm);
    ANSWER(ncclAllReduce, what, buffer, buffer, 1, ncclInt8, ncclSum, comm, NULL);
    ANSWER(ncclReduce, what, buffer, buffer, 1, ncclInt8, ncclSum, 0, comm, NULL);
    ANSWER(ncclReduceScatter, what, buffer, buffer, 1, ncclInt8, ncclSum, comm, NULL);
    ANSWER(ncclBroadcast, what, buffer, buffer, 1, ncclInt8, 0, comm, NULL);
    ANSWER(ncclBcast, what, buffer, 1, ncclInt8, 0, comm, NULL);
    ANSWER(ncclAllGather, what, buffer, buffer, 1, ncclInt8, comm, NULL);
    ANSWER(ncclAlltoAll, what, buffer, buffer, 1, ncclInt8, comm, NULL);
    ANSWER(ncclGather, what, buffer, buffer, 1, ncclInt8, 0, comm, NULL);
    ANSWER(ncclScatter, what, buffer, buffer, 1, ncclInt8, 0, comm, NULL);
    ANSWER(ncclSend, what, buffer, 1, ncclInt8, 0, comm, NULL);
    ANSWER(ncclRecv, what, buffer, 1, ncclInt8, 0, comm, NULL);
}

int main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) {
        fprintf(stderr, "usage: answers LIBRARY: %s\n", argc == 2 ? dlerror() : "");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    int version = 0;
    ncclUniqueId id = {{0}};
    ncclComm_t comm = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    for (int code = -1; code < 11; code++) {
        printf("%d: %s\n", code, OF(ncclGetErrorString)((ncclResult_t)code));
    }
    ANSWER(ncclGetVersion, "null", NULL);
    ANSWER(ncclGetVersion, "a number", &version);
    ANSWER(ncclGetUniqueId, "null", NULL);
    ANSWER(ncclCommDestroy, "null", NULL);
    ANSWER(ncclCommAbort, "null", NULL);
    ANSWER(ncclCommFinalize, "null", NULL);
    ANSWER(ncclCommFinalize, "a foreign one", (ncclComm_t)(void *)foreign);
    ANSWER(ncclCommAbort, "a foreign one", (ncclComm_t)(void *)foreign);
    ANSWER(ncclCommDestroy, "a foreign one", (ncclComm_t)(void *)foreign);
    ANSWER(ncclCommInitAll, "no ranks", &comm, 0, NULL);
    ANSWER(ncclCommInitAll, "null", NULL, 1, NULL);
    ANSWER(ncclCommInitRank, "rank above", &comm, 2, id, 2);
    ANSWER(ncclCommInitRank, "rank below", &comm, 2, id, -1);
    ANSWER(ncclCommInitRank, "no ranks", &comm, 0, id, 0);
    ANSWER(ncclCommInitRank, "null", NULL, 1, id, 0);
    config.size = 0;
    ANSWER(ncclCommInitRankConfig, "a size of 0", &comm, 1, id, 0, &config);
    config.size = sizeof config;
    config.magic = 1;
    ANSWER(ncclCommInitRankConfig, "another magic", &comm, 1, id, 0, &config);
    config.magic = 0xcafebeef;
    config.blocking = 7;
    ANSWER(ncclCommInitRankConfig, "blocking 7", &comm, 1, id, 0, &config);
    printf("ncclGroupEnd, none is open: %d\n", OF(ncclGroupEnd)());
    about(library, NULL, "null");
    about(library, (ncclComm_t)(void *)foreign, "a foreign one");
    return 0;
}
