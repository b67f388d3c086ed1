/*
 * What goes to the library that SPARK_CCL_NCCL_FALLBACK names, of ranks that are processes.
 *
 *   forward FILE RANK SIZE
 */
#include "ranks.h"

#include <dlfcn.h>

/* A handle that the other library has made, and recognises. */
static ncclComm_t theirs(void)
{
    void *library = dlopen(getenv("SPARK_CCL_NCCL_FALLBACK"), RTLD_NOW | RTLD_LOCAL);
    require(library != NULL, "the other library");
    ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int);
    *(void **)&init = dlsym(library, "ncclCommInitRank");
    ncclUniqueId id = {"a program's own"};
    ncclComm_t other = NULL;
    SUCCEEDS(init(&other, 1, id, 0));
    return other;
}

int main(int argc, char **argv)
{
    require(argc == 4, "usage: forward FILE RANK SIZE");
    rank = atoi(argv[2]);
    size = atoi(argv[3]);
    char buffer[64] = {0};
    int number = 0;
    ncclWindow_t window = NULL;
    /* Mapped by this program first, so the functions that it calls by name are ours. */
    ncclComm_t other = theirs();
    SUCCEEDS(ncclCommInitRank(&comm, size, meet(argv[1]), rank));

    /* Objects that other functions have to make first. */
    require(ncclSignal(1, 0, 0, 0, comm, NULL) == ncclInvalidUsage, "a signal without a window");
    require(strstr(ncclGetLastError(comm), "ncclCommWindowRegister") != NULL, "why not");
    SUCCEEDS(ncclGroupStart());
    FAILS(ncclCommWindowRegister(comm, buffer, sizeof buffer, &window, 0), ncclInvalidUsage,
          "cannot be called within a group");
    FAILS(ncclGroupEnd(), ncclInvalidUsage, "cannot be called within a group");
    SUCCEEDS(ncclCommWindowRegister(comm, buffer, sizeof buffer, &window, 0));
    require((void *)window == buffer, "a window of the other library's");
    SUCCEEDS(ncclSignal(1, 0, 0, 0, comm, NULL));
    require(ncclSignal(2, 0, 0, 0, comm, NULL) == ncclInternalError, "a result that is none");
    require(strstr(ncclGetLastError(comm), "returned 99: the last error of the fallback") != NULL,
            "its words");
    require(ncclMemAlloc(NULL, 1) == ncclInvalidArgument, "a function without a communicator");

    /* Functions that this library has are not passed on. */
    SUCCEEDS(ncclCommCount(comm, &number));
    require(number == size, "the size of our communicator");
    expect_sum(comm, 1, size, "a sum");

    /* A communicator of the other library is passed to it, also where it calls us with its own. */
    SUCCEEDS(ncclCommCount(other, &number));
    require(number == 77, "the size of a foreign communicator");
    require(strcmp(ncclGetLastError(other), "the error of its communicator") == 0, "its error");
    SUCCEEDS(ncclGroupStart());
    require(ncclBcast(buffer, 1, ncclInt8, 0, other, NULL) == ncclInvalidUsage, "its broadcast");
    SUCCEEDS(ncclGroupEnd());
    SUCCEEDS(ncclGroupStart());
    require(ncclBcast(buffer, 2, ncclInt8, 0, other, NULL) == ncclInvalidUsage, "its broadcast");
    require(ncclGroupEnd() == ncclInProgress, "what goes on in the background there");
    expect_sum(comm, 2, 2 * size, "another sum");

    /* In the other library, too, an abort does not wait for the other ranks. */
    ncclComm_t part = NULL;
    SUCCEEDS(ncclCommSplit(comm, 0, rank, &part, NULL));
    SUCCEEDS(ncclCommWindowRegister(part, buffer, sizeof buffer, &window, 0));
    SUCCEEDS(ncclCommAbort(part));
    SUCCEEDS(ncclCommDestroy(other));
    SUCCEEDS(ncclCommDestroy(comm));
    FAILS(ncclCommCount(comm, &number), ncclInvalidArgument, "no such communicator");
    printf("rank %d of %d: right\n", rank, size);
    return 0;
}
