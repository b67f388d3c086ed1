#!/bin/bash
# Random faults (killed, stopped, cut off and forked ranks, wrong calls, lost packets, garbage or
# hundreds of silent connections on every port, logs without a reader, memory that is dropped while
# in use) in random calls of real processes. With a C++ compiler, that memory is of fake GPUs; else
# it is registered memory of the host. Prints how many cases hung, were wrong, named no rank, or
# left something behind, and fails if any did.
#   tests/faults.sh [-r] N SEED    N cases; `tests/faults.sh [-r] 1 SEED` repeats that of a SEED
#                                  which it prints
#   Several may run side by side, with seeds 2 * N apart: what a job has is its own.
#   -r    over RDMA, in an emulated machine: up to 15 minutes of cases
# Needs root, for network namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."

over=sockets
if [ "${1:-}" = -r ]; then
    over=rdma
    shift
fi
if [ $# != 2 ]; then
    sed -n 's/^#   //p' "$0" >&2
    exit 64
fi
export FAULTS_CASES=$1 FAULTS_SEED=$2
if [ $over = rdma ]; then
    exec tests/vm/rdma-tests.sh -m wire random_faults_over_rdma
fi
export SPARK_CCL_TEST_REQUIRE=namespaces,nft
if command -v c++ >/dev/null; then
    . tests/vm/lib.sh
    libraries=$(mktemp -d)
    trap 'rm -r "$libraries"' EXIT
    fake_gpus "$libraries"
    export SPARK_CCL_TEST_FAKE_GPUS=$libraries
else
    echo "no C++ compiler: ranks drop registered memory only" >&2
fi
# With the features of the workspace's tests, nothing is built anew.
cargo test -q --workspace --test suite -- --ignored --exact campaign::as_many_as_told --nocapture
