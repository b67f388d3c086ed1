/*
 * A driver of CUDA's that cannot be used is no reason to take a GPU's memory for the host's.
 */
#include "ranks.h"

int main(void)
{
    ncclUniqueId id;
    rank = 0, size = 1;
    SUCCEEDS(ncclGetUniqueId(&id));
    FAILS(ncclCommInitRank(&comm, size, id, rank), ncclUnhandledCudaError,
          "SPARK_CCL_BACKEND=host");
    require(comm == NULL, "a communicator without its GPU");
    puts("right");
    return 0;
}
