#!/bin/bash
# Installs what the tests need, and runs them all. Debian 12.
#   tests/run.sh [argument of `cargo test`]...
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh

# A C compiler for the tests of the C ABI, and one of C++ for GPUs that are none; two launchers;
# `ip` and `nft` for network namespaces; ssh, which reaches them as hosts. No ssh server, since
# Debian would start it: the tests that need one are skipped where none is installed.
need gcc g++ libc6-dev openmpi-bin mpich iproute2 nftables openssh-client python3

# What was measured on this machine must not change which algorithms run; tests of that name files
# of their own.
export SPARK_CCL_TUNING=off
# Messages are read straight out of their senders' memory also where two copies take less time.
export SPARK_CCL_SINGLE_COPY=${SPARK_CCL_SINGLE_COPY:-1}
# What was just installed must be used; tests that find something else missing are listed at the
# end.
export SPARK_CCL_TEST_REQUIRE=${SPARK_CCL_TEST_REQUIRE:-c++,launchers,python,rustc}
. tests/skipped.sh
trap list_skipped EXIT

# Many tests wait most of their time.
[ "$(nproc)" -ge 4 ] || export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}

# Tests send signals, and a process that starts with one ignored (by nohup, or in a script's
# background) hands that on.
env --default-signal=HUP,INT,QUIT cargo test --workspace "$@"
if [ $# = 0 ]; then
    tests/fake-gpus.sh
fi
