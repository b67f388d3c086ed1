#!/bin/bash
# Installs what the tests need, and runs them all. Debian 12.
#   tests/run.sh [argument of `cargo test`]...
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh

# A C compiler for the tests of the C ABI, and a C++ compiler for fake GPUs; two launchers; `ip` and
# `nft` for network namespaces; ssh, which reaches them as hosts. No ssh server, since Debian would
# start it: the tests that need one are skipped if none is installed.
need gcc g++ libc6-dev openmpi-bin mpich iproute2 nftables openssh-client python3

# Measurements of this machine must not change which algorithms run; tests about that name files of
# their own.
export SPARK_CCL_TUNING=off
# Messages are read straight out of their senders' memory even if two copies are faster.
export SPARK_CCL_SINGLE_COPY=${SPARK_CCL_SINGLE_COPY:-1}
# Tests must use the packages that were just installed; those that lack something else are listed at
# the end.
export SPARK_CCL_TEST_REQUIRE=${SPARK_CCL_TEST_REQUIRE:-c++,launchers,python,rustc}
. .ci/steps.sh
. tests/skipped.sh
trap 'at_end; list_skipped' EXIT

# Many tests wait most of their time.
[ "$(nproc)" -ge 4 ] || export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}

# Tests send signals, and a process that starts with one ignored (by nohup, or in a script's
# background) passes that on to its children.
tests() {
    env --default-signal=HUP,INT,QUIT cargo test --workspace "$@"
}
fakes() {
    tests/fake-gpus.sh
}

if [ $# != 0 ]; then
    tests "$@"
    exit
fi
# Both build the same. Then each waits most of its time.
step "Test programs" tests --no-run
beside fakes
step "Tests of the workspace" tests
finish fakes
all_passed
