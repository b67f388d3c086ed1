#!/bin/bash
# Runs the tests of device memory on fake GPUs and a fake NCCL (crates/perf/tests/fake_gpu): which
# calls are made, in which order, on which memory, and what happens when they fail. It shows nothing
# about NCCL itself.
#   tests/fake-gpus.sh [argument of the test program]...
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh

libraries=$(mktemp -d)
trap 'rm -r "$libraries"' EXIT
fake_gpus "$libraries"
export SPARK_CCL_TEST_REQUIRE=gpus,fake-gpus
on_fakes() {
    env -u SPARK_CCL_NCCL_LIBRARY LD_LIBRARY_PATH="$libraries" FAKE_GPUS="${FAKE_GPUS:-2}" "$@" </dev/null
}
# With the features of the workspace's tests, nothing is built anew.
test_programs --workspace --test gpu --test staged --test kernels >"$libraries/programs"
while IFS=$'\t' read -r todo name folder program; do
    [ "$todo $folder" = "run $PWD" ] || continue
    # Threads act as the kernels between GPUs. The ranks share a GPU, as two fake ones are of
    # different models.
    if [ "$name" = kernels ]; then
        FAKE_GPUS=1 on_fakes "$program" -q all_take_the_kernels means_are that_cannot_map
    else
        on_fakes "$program" -q "$@"
    fi
    # Once more on memory of the host, on which calls are not staged; messages always are.
    [ "$name" != staged ] ||
        SPARK_CCL_GPU_PINNED=1 on_fakes "$program" -q --skip messages:: --skip by_mail:: --skip unstaged:: "$@"
    # By pieces, as over links between hosts: what ends calls, and what does not.
    [ "$name" != staged ] ||
        SPARK_CCL_TEST_GPU_PROTOCOL=proxy on_fakes "$program" -q by_host:: by_mail:: messages:: \
            ways:: failures:: processes:: announced:: "$@"
    # And over fake RDMA devices, which belong to one process. How calls fail does not depend on
    # the links.
    over_devices() {
        SPARK_CCL_TEST_RDMA_SEED=$RANDOM on_fakes "$program" -q "$@"
    }
    [ "$name" != staged ] ||
        over_devices --skip processes:: --skip failures:: --skip unstaged:: --skip on_gpus:: \
            --skip the_data_of_a_process_that_has_exited "$@"
    # The same devices write slots into the GPUs' memory, where GPUs order that.
    [ "$name" != staged ] ||
        FAKE_GENERATION=9 SPARK_CCL_TEST_GPU_PROTOCOL=proxy over_devices by_slots:: by_host:: \
            roots:: collectives:: graphs:: mail:: messages:: late:: \
            --skip the_data_of_a_process_that_has_exited "$@"
done <"$libraries/programs"
test_programs --workspace --lib >"$libraries/programs"
cuda=$(awk -F'\t' '$2 == "spark_ccl_cuda" { print $4 }' "$libraries/programs")
(cd crates/cuda && on_fakes "$cuda" -q "$@")
# The C interface, with threads as ranks: all fakes belong to one process.
cargo build --workspace --lib --test c_program
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
for name in libspark_ccl.so libspark_ccl.so.0; do
    ln -s "$target/debug/libspark_ccl.so" "$libraries/$name"
done
for program in device context; do
    cc -std=c11 -D_POSIX_C_SOURCE=200809L -O1 -pthread -Wall -Wextra -Wpedantic -Werror \
        -Iffi/include "ffi/tests/$program.c" -o "$libraries/$program" \
        -L "$libraries" -lspark_ccl -lcuda
done
for ranks in 1 2 3; do
    env -u SPARK_CCL_NCCL_LIBRARY LD_LIBRARY_PATH="$libraries" FAKE_GPUS=$ranks SPARK_CCL_BACKEND=nccl SPARK_CCL_TUNING=off \
        "$libraries/device" threads "$ranks" 2>/dev/null
done
for backend in nccl engine; do
    on_fakes env SPARK_CCL_BACKEND=$backend SPARK_CCL_GPU_PROTOCOL=proxy SPARK_CCL_GPU_PINNED=1 \
        SPARK_CCL_RANK=0 SPARK_CCL_SIZE=1 "$libraries/context"
done
# NCCL's ABI on our kernels. Its library has the name of the fake NCCL, which is not used here.
mkdir "$libraries/own"
ln -s "$target/debug/libspark_nccl.so" "$libraries/own/libnccl.so.2"
cc -std=c11 -D_POSIX_C_SOURCE=200809L -O1 -pthread -Wall -Wextra -Wpedantic -Werror \
    ffi/nccl/tests/device.c -o "$libraries/own/device" \
    "$libraries/own/libnccl.so.2" -L "$libraries" -lcuda
env LD_LIBRARY_PATH="$libraries/own:$libraries" FAKE_GPUS=1 SPARK_CCL_SHARE_GPU=1 \
    SPARK_CCL_TUNING=off SPARK_CCL_GPU_PROTOCOL=proxy SPARK_CCL_GPU_PINNED=1 \
    "$libraries/own/device"
