#!/bin/bash
# Starts the tests of device memory again and again, with malloc's checks and beside random faults
# of other processes, until a start fails: for faults that happen once in many starts. gdb shows
# where each thread was then.
#   tests/gpu-starts.sh STARTS [argument of the test program]...
# Needs GPUs, gdb, and root, for the faults' network namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."

starts=${1:?"how many starts?"}
shift
program=$(cargo test -p spark-ccl --test gpu --no-run 2>&1 | sed -n 's/.*Executable.*(\(.*\))$/\1/p')
cargo test -p spark-ccl --test suite --no-run

log=$(mktemp)
set -m
tests/faults.sh 1000000 1 >/dev/null 2>&1 &
faults=$!
trap 'kill -- "-$faults" 2>/dev/null; rm "$log"' EXIT

for ((start = 1; start <= starts; start++)); do
    # Freed memory is overwritten, and a block's end is checked when it is freed. One test at a
    # time: the failing one is named.
    if ! gdb -q -batch -return-child-result -ex "set startup-with-shell off" \
        -ex "set environment LD_PRELOAD libc_malloc_debug.so.0" \
        -ex "set environment GLIBC_TUNABLES glibc.malloc.check=3:glibc.malloc.perturb=165" \
        -ex "set environment SPARK_CCL_TEST_REQUIRE gpus" \
        -ex run -ex "thread apply all backtrace" \
        --args "$program" --test-threads=1 "$@" >"$log" 2>&1; then
        cat "$log"
        echo "start $start of $starts failed" >&2
        exit 1
    fi
done
echo "$starts starts, no failure"
