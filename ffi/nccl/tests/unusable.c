/* What is said of a library that cannot stand behind this one: the words of the first argument. */
#include "ranks.h"

int main(int argc, char **argv)
{
    ncclUniqueId id;
    require(argc == 2, "usage: unusable WORDS");
    rank = 0, size = 1;
    SUCCEEDS(ncclGetUniqueId(&id));
    FAILS(ncclCommInitRank(&comm, size, id, rank), ncclInvalidArgument, argv[1]);
    require(comm == NULL, "a communicator");
    require(ncclSignal(0, 0, 0, 0, NULL, NULL) == ncclInvalidArgument, "a function sent there");
    require(strstr(ncclGetLastError(NULL), argv[1]) != NULL, "why it is not");
    puts("right");
    return 0;
}
