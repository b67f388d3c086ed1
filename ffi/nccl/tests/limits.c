/*
 * A communicator that makes a call and then fails, which writes a record where SPARK_CCL_RECORD
 * says so. The record has how long a call may take.
 */
#include "ranks.h"

int main(void)
{
    ncclComm_t all[2];
    int32_t words[2] = {1, 2};
    size = 2;
    SUCCEEDS(ncclCommInitAll(all, size, NULL));
    comm = all[0];
    SUCCEEDS(ncclGroupStart());
    for (int i = 0; i < size; i++) {
        SUCCEEDS(ncclAllReduce(&words[i], &words[i], 1, ncclInt32, ncclSum, all[i], NULL));
    }
    SUCCEEDS(ncclGroupEnd());
    SUCCEEDS(ncclCommRevoke(comm, 0));
    for (int i = 0; i < size; i++) {
        FAILS(ncclAllReduce(&words[i], &words[i], 1, ncclInt32, ncclSum, all[i], NULL),
              ncclRemoteError, "ncclCommRevoke");
        SUCCEEDS(ncclCommAbort(all[i]));
    }
    puts("right");
    return 0;
}
