#!/bin/bash
# Random faults (killed, stopped, cut off, mistaken and forked ranks, garbage on every port) in random calls of real
# processes. Prints how many hung, were wrong, named nobody, or left something behind, and fails where any did.
#   tests/faults.sh N SEED    N cases; `tests/faults.sh 1 SEED` repeats that of a SEED which it prints
# Needs root, for network namespaces. Lost packets and RDMA are for the emulated machines of tests/vm.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# != 2 ]; then
    sed -n '4s/^# *//p' "$0" >&2
    exit 64
fi
export FAULTS_CASES=$1 FAULTS_SEED=$2 SPARK_CCL_TEST_REQUIRE=namespaces
exec cargo test -q -p spark-ccl --test suite -- --ignored --exact campaign::as_many_as_told --nocapture
