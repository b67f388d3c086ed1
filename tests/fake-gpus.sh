#!/bin/bash
# Runs the tests of device memory on GPUs and an NCCL that are none (crates/perf/tests/fake_gpu): which calls are
# made, in which order, on which memory, and what happens when they fail. About NCCL itself this shows nothing.
#   tests/fake-gpus.sh [argument of the test program]...
set -euo pipefail
cd "$(dirname "$0")/.."

libraries=$(mktemp -d)
trap 'rm -r "$libraries"' EXIT
# NCCL enqueues in CUDA's streams: both are one library.
c++ -std=c++17 -O1 -Wall -Wextra -Werror -fPIC -shared crates/perf/tests/fake_gpu/*.cpp -o "$libraries/libcuda.so.1"
ln "$libraries/libcuda.so.1" "$libraries/libnccl.so.2"
export SPARK_CCL_TEST_REQUIRE=gpus,fake-gpus
on_fakes() {
    cargo test "$@" --no-run
    env -u SPARK_CCL_NCCL_LIBRARY LD_LIBRARY_PATH="$libraries" FAKE_GPUS=2 cargo test -q "$@" -- "${tests[@]}"
}
tests=("$@")
on_fakes -p spark-ccl --test gpu
on_fakes -p spark-ccl-cuda --lib
