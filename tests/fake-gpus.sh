#!/bin/bash
# Runs the tests of device memory on fake GPUs and a fake NCCL (crates/perf/tests/fake_gpu): which
# calls are made, in which order, on which memory, and what happens when they fail. It shows nothing
# about NCCL itself.
#   tests/fake-gpus.sh [argument of the test program]...
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
. .ci/steps.sh

arguments=("$@")
# The steps' folder, which they remove.
libraries=$output/libraries
mkdir "$libraries" "$libraries/own"
fake_gpus "$libraries"
# With the features of the workspace's tests, nothing is built anew. The C interface is a library
# that `cargo test` alone does not build.
test_programs --workspace --lib --test gpu --test staged --test kernels >"$libraries/programs"
cargo build --workspace --lib --test c_program
target=$(cargo metadata --format-version 1 --no-deps |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug
export SPARK_CCL_TEST_REQUIRE=gpus,fake-gpus
# As in tests/run.sh.
export SPARK_CCL_TUNING=off
[ "$(nproc)" -ge 4 ] || export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}
# The fake NCCL counts.
unset SPARK_CCL_NCCL_LIBRARY

# built NAME FOLDER: a test program of the package in this folder.
built() {
    awk -F'\t' -v name="$1" -v folder="$2" \
        '$1 == "run" && $2 == name && $3 == folder { print $4 }' "$libraries/programs"
}
gpu=$(built gpu "$PWD")
staged=$(built staged "$PWD")
kernels=$(built kernels "$PWD")
cuda=$(built spark_ccl_cuda "$PWD/crates/cuda")

on_fakes() {
    LD_LIBRARY_PATH=$libraries FAKE_GPUS=${FAKE_GPUS:-2} "$@" </dev/null
}

# tests PROGRAM [ARGUMENT...]: those of a program that the script's arguments choose.
tests() {
    on_fakes "$@" ${arguments[@]+"${arguments[@]}"}
}

# Fake RDMA devices belong to one process.
over_devices() {
    SPARK_CCL_TEST_RDMA_SEED=$RANDOM tests "$staged" \
        --skip processes:: --skip the_data_of_a_process_that_has_exited "$@"
}

# Tests wait most of their time: for ranks that are stopped, or for limits. So these four run side
# by side.

own_memory() {
    step "Device memory, staged" tests "$staged"
}

# On memory of the host, on which calls are not staged; messages always are.
pinned_memory() {
    SPARK_CCL_GPU_PINNED=1 step "Device memory that is the host's" tests "$staged" \
        --skip messages:: --skip by_mail:: --skip unstaged::
}

# By pieces, as over links between hosts: what ends calls, and what does not.
pieces() {
    SPARK_CCL_TEST_GPU_PROTOCOL=proxy step "Device memory by pieces" tests "$staged" \
        by_host:: by_mail:: messages:: ways:: failures:: processes:: announced::
}

devices() {
    # How calls fail does not depend on the links.
    step "Device memory over RDMA" over_devices \
        --skip failures:: --skip unstaged:: --skip on_gpus::
    # The same devices write slots into the GPUs' memory, where GPUs order that.
    FAKE_GENERATION=9 SPARK_CCL_TEST_GPU_PROTOCOL=proxy step "Slots over RDMA" over_devices \
        by_slots:: by_host:: roots:: collectives:: graphs:: mail:: messages:: late::
}

# Test programs run in their package's folder.
cuda_driver() {
    (cd crates/cuda && tests "$cuda")
}

# compiled OPTION...: a program in C.
compiled() {
    cc -std=c11 -D_POSIX_C_SOURCE=200809L -O1 -pthread -Wall -Wextra -Wpedantic -Werror "$@"
}

# The C interface, with threads as ranks: all fakes belong to one process.
c_interface() {
    local name program ranks backend
    for name in libspark_ccl.so libspark_ccl.so.0; do
        ln -s "$target/libspark_ccl.so" "$libraries/$name" || return
    done
    for program in device context; do
        compiled -Iffi/include "ffi/tests/$program.c" -o "$libraries/$program" \
            -L "$libraries" -lspark_ccl -lcuda || return
    done
    for ranks in 1 2 3; do
        FAKE_GPUS=$ranks SPARK_CCL_BACKEND=nccl \
            on_fakes "$libraries/device" threads "$ranks" 2>/dev/null || return
    done
    for backend in nccl engine; do
        SPARK_CCL_BACKEND=$backend SPARK_CCL_GPU_PROTOCOL=proxy SPARK_CCL_GPU_PINNED=1 \
            SPARK_CCL_RANK=0 SPARK_CCL_SIZE=1 on_fakes "$libraries/context" || return
    done
}

# NCCL's ABI on our kernels. Its library has the name of the fake NCCL, which is not used here.
nccl_interface() {
    local own=$libraries/own
    ln -s "$target/libspark_nccl.so" "$own/libnccl.so.2" &&
        compiled ffi/nccl/tests/device.c -o "$own/device" \
            "$own/libnccl.so.2" -L "$libraries" -lcuda &&
        LD_LIBRARY_PATH=$own:$libraries FAKE_GPUS=1 SPARK_CCL_SHARE_GPU=1 \
            SPARK_CCL_GPU_PROTOCOL=proxy SPARK_CCL_GPU_PINNED=1 "$own/device"
}

beside own_memory
beside pinned_memory
beside pieces
beside devices
step "NCCL on fake GPUs" tests "$gpu"
# Threads act as the kernels between GPUs. The ranks share a GPU, as two fake ones are of different
# models.
FAKE_GPUS=1 step "Kernels between GPUs" on_fakes \
    "$kernels" all_take_the_kernels means_are that_cannot_map
step "CUDA's driver" cuda_driver
step "The interface of C" c_interface
step "NCCL's interface" nccl_interface
finish own_memory
finish pinned_memory
finish pieces
finish devices
all_passed
