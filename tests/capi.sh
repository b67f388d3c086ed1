#!/bin/bash
# Installs the C interface into a temporary folder as users do, builds the examples against that by
# pkg-config, and runs them. Then runs the programs of its tests under valgrind, and with GCC's
# sanitizers.
#   tests/capi.sh [argument of `cargo cinstall`]...      (such as --debug)
# cargo-c is compiled if it is missing, which takes minutes, and kept in
# $XDG_CACHE_HOME/spark-ccl.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
need gcc g++ binutils pkg-config valgrind

fail() {
    echo "$1" >&2
    exit 1
}

# install_tool [VERSION]: without optimisations, which would take several times as long.
install_tool() {
    cargo install --locked --debug --root "$tool" "cargo-c${1:+@$1}" 2>&1 | tee "$tool.log" >&2
}

tool=$(dirname "$cache")/cargo-c
export PATH=$tool/bin:$PATH
if ! command -v cargo-capi >/dev/null; then
    need libssl-dev pkg-config
    # The newest may need a newer Rust; then cargo names the last version that does not.
    older='s/^`cargo-c \([0-9.]*\).*` supports rustc.*/\1/p'
    install_tool || install_tool "$(sed -n "$older" "$tool.log")"
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix=$folder/prefix
cargo cinstall --locked -p spark-ccl-ffi --prefix "$prefix" --libdir "$prefix/lib" "$@"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
# Measurements of this machine must not change which algorithms run.
export SPARK_CCL_TUNING=off

# launch RANKS COMMAND...: runs a command as this number of ranks; all must succeed.
launch() {
    local size=$1 port=$((20000 + RANDOM % 12000)) rank pids=() pid failed=0
    shift
    for ((rank = 0; rank < size; rank++)); do
        RANK=$rank WORLD_SIZE=$size LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || failed=$?
    done
    [ "$failed" = 0 ] || fail "$*: a rank has failed ($failed)"
}

# compile NAME SOURCE COMPILER ARGUMENT...: makes a program of it in the folder.
compile() {
    local name=$1 source=$2
    shift 2
    # shellcheck disable=SC2046
    "$@" -g -O1 -Wall -Wextra -Werror -pthread -D_POSIX_C_SOURCE=200809L $(pkg-config --cflags spark_ccl) \
        "$source" -x none -o "$folder/$name" $(pkg-config --libs spark_ccl) -lm
}

[ "$(pkg-config --modversion spark_ccl)" = "$(cargo pkgid -p spark-ccl-ffi | sed 's/.*[@#]//')" ] ||
    fail "spark_ccl.pc has another version than the package"
readelf -d "$prefix/lib/libspark_ccl.so" | grep -q 'soname: \[libspark_ccl.so.0\]' || fail "another soname"
cmp ffi/include/spark_ccl.h "$prefix/include/spark_ccl.h"

for source in examples/c/*.c; do
    name=$(basename "$source" .c)
    # It needs GPUs: see below.
    [ "$name" != device_memory ] || continue
    compile "$name" "$source" gcc -std=c11
    launch 3 "$folder/$name"
    compile "$name" "$source" g++ -std=c++17 -x c++
    launch 2 "$folder/$name"
done

# Without the shared library.
# shellcheck disable=SC2046
gcc -std=c11 $(pkg-config --cflags spark_ccl) examples/c/all_reduce.c -o "$folder/static" \
    "$prefix/lib/libspark_ccl.a" $(pkg-config --static --libs-only-l spark_ccl | sed 's/-lspark_ccl//')
launch 2 env -u LD_LIBRARY_PATH "$folder/static"

for source in ffi/tests/*.c; do
    name=$(basename "$source" .c)
    # These need GPUs.
    ! grep -q '"driver.h"' "$source" || continue
    arguments=()
    # Without it, the program makes its own ranks.
    [ "$name" != ranks ] || arguments=(env)
    echo "$name under valgrind"
    compile "$name" "$source" gcc -std=c11
    launch 2 valgrind --quiet --error-exitcode=9 --suppressions=tests/valgrind.supp \
        "$folder/$name" "${arguments[@]}"
    echo "$name with sanitizers"
    sanitizers=address,undefined
    # GCC 12's allocator keeps in a forked child the locks that another thread held: it would hang.
    [ "$name" != fork ] || sanitizers=undefined
    compile "$name" "$source" gcc -std=c11 -fsanitize=$sanitizers -fno-sanitize-recover=all
    launch 2 "$folder/$name" "${arguments[@]}"
done

# On device memory, by NCCL and by our own kernels; both ranks share a GPU where there is only one.
gpus=$(nvidia-smi -L 2>/dev/null | wc -l) || gpus=0
if [ "$gpus" = 0 ]; then
    echo "SKIPPED: device memory in C, for lack of GPUs (tests/fake-gpus.sh has fake ones)"
else
    # shellcheck disable=SC2046
    for source in ffi/tests/device.c examples/c/device_memory.c; do
        gcc -std=c11 -O1 -D_POSIX_C_SOURCE=200809L -pthread -I/usr/local/cuda/include $(pkg-config --cflags spark_ccl) \
            "$source" -o "$folder/$(basename "$source" .c)" $(pkg-config --libs spark_ccl) -L/usr/local/cuda/lib64/stubs -lcuda
    done
    ranks=$((gpus < 2 ? 1 : 2))
    for backend in nccl engine; do
        launch "$ranks" env SPARK_CCL_BACKEND=$backend "$folder/device"
    done
    launch 2 env SPARK_CCL_BACKEND=engine SPARK_CCL_SHARE_GPU=1 SPARK_CCL_DEVICE=0 "$folder/device"
    launch "$ranks" "$folder/device_memory"
fi
echo "the C interface is installed, and works"
