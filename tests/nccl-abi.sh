#!/bin/bash
# Compares libspark_nccl.so with NVIDIA's own headers, without a GPU: its functions' prototypes with
# those of the newest, the layouts of its structures with those of several versions; runs the
# program of its tests as one that was compiled with NCCL's header; and compares what it answers to
# wrong arguments with what NCCL's own library does. Then imports PyTorch with it, also by the
# Python package.
# The headers and the library are in wheels from PyPI (1.1 GB, of which they are kept in
# $XDG_CACHE_HOME/spark-ccl). PyTorch is that of tests/torch.sh, and is skipped where that is not
# there; all is skipped without a network, unless SPARK_CCL_TEST_REQUIRE has "nccl".
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
. tests/wheels.sh
need gcc binutils

skip() {
    echo "SKIPPED: $1" >&2
    case ,${SPARK_CCL_TEST_REQUIRE:-}, in *,nccl,*) exit 1 ;; *) return ;; esac
}

fail() {
    echo "$1" >&2
    exit 1
}

# Wheels and their hashes; the newest is the last. Headers are the same for all processors.
[ "$(uname -m)" = x86_64 ] || { skip "the wheels are those for x86-64" && exit; }
wheels_of_nccl=(
    nvidia-nccl-cu12==2.18.1 1a6c4acefcbebfa6de320f412bf7866de856e786e0462326ba1bac40de0b5e71
    nvidia-nccl-cu12==2.27.7 de5ba5562f08029a19cb1cd659404b18411ed0d6c90ac5f52f30bf99ad5809aa
    nvidia-nccl-cu13==2.32.3 1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3
)
newest=${wheels_of_nccl[-2]#*==}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# What headers need of CUDA's.
mkdir "$folder/cuda"
cat >"$folder/cuda/cuda_runtime.h" <<'END'
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
END
echo "typedef enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 } CUmemLocationType;" >"$folder/cuda/cuda.h"
touch "$folder/cuda/"{cuda_fp16,cuda_bf16,cuda_fp8}.h

# compile VERSION FILE...: with the header of a version, whose devices' part has inline functions
# without bodies.
compile() {
    local headers=$wheels/nccl-headers/$1
    shift
    gcc -std=c11 -D_POSIX_C_SOURCE=200809L -DNCCL_OS_LINUX -O1 -w \
        -Werror=incompatible-pointer-types -I"$folder/cuda" -I"$headers" "$@"
}

# What the table of functions, and the structures, are in C. With the features of the workspace's
# tests, nothing is built anew; no other package has such a test.
printed() {
    cargo test -q --workspace --lib -- --exact "exports::tests::$1" --nocapture |
        sed -n "s/^$2: //p"
}
printed declarations C >"$folder/declarations"
[ "$(wc -l <"$folder/declarations")" = 97 ] || fail "not 97 functions were printed"
printed layouts L >"$folder/layouts"
grep -q offsetof "$folder/layouts" || fail "no layouts were printed"

# check VERSION
check() {
    {
        echo "#include <nccl.h>"
        if [ "$1" = "$newest" ]; then
            for part in host gin_win_stub; do
                echo "#include <nccl_device/$part.h>"
            done
            cat "$folder/declarations"
        fi
        cat "$folder/layouts"
    } >"$folder/check.c"
    compile "$1" -fsyntax-only "$folder/check.c"
}

for ((i = 0; i < ${#wheels_of_nccl[@]}; i += 2)); do
    version=${wheels_of_nccl[i]#*==}
    files=(nccl.h)
    [ "$version" != "$newest" ] || files+=(nccl_device)
    fetch_wheel "${wheels_of_nccl[i]}" "${wheels_of_nccl[i + 1]}" \
        "$wheels/nccl-headers/$version" "${files[@]}" ||
        { skip "NCCL's header of version $version is not here, and could not be fetched" && exit; }
    check "$version"
    echo "as in the header of NCCL $version"
done

# The program of the tests, which has declarations of its own there.
cargo build -q --workspace --lib --test library
library=$(realpath "${CARGO_TARGET_DIR:-target}/debug/libspark_nccl.so")
ln -s "$library" "$folder/libnccl.so.2"
compile "$newest" -DREAL_HEADER ffi/nccl/tests/host.c -o "$folder/host" "$library" -lm \
    -Wl,-rpath,"$folder"
ranks=()
for rank in 0 1; do
    SPARK_CCL_TIMEOUT=120 "$folder/host" "$folder/id" $rank 2 &
    ranks+=($!)
done
for rank in "${ranks[@]}"; do
    wait "$rank" || fail "a rank of a program with NCCL's header has failed"
done

# What the real library answers to wrong arguments, where it neither crashes nor asks for a GPU (1).
fetch_wheel nvidia-nccl-cu12==2.30.7 \
    8ce1b8213f61f2bfac132e6df890af6450b77cbd140c6ce4e98cb0c2d8e678c9 \
    "$wheels/nccl/2.30.7" libnccl.so.2 || { skip "NCCL's own library is not here" && exit; }
compile "$newest" -DREAL_HEADER ffi/nccl/tests/answers.c -o "$folder/answers" -ldl
"$folder/answers" "$wheels/nccl/2.30.7/libnccl.so.2" >"$folder/real" 2>"$folder/said"
"$folder/answers" "$library" >"$folder/ours"
grep -vE ': (1|crashes)$' "$folder/real" >"$folder/expected"
missing=$(grep -vxFf "$folder/ours" "$folder/expected") &&
    fail "NCCL's own library answers otherwise:
$missing"
grep -q crashes "$folder/ours" && fail "$(grep crashes "$folder/ours")"
alike=$(wc -l <"$folder/expected")
[ "$alike" -ge 40 ] || fail "only $alike answers could be compared"
echo "$alike of $(wc -l <"$folder/ours") answers are those of NCCL's own library"

# With that library behind ours, communicators that are none of ours have all its answers.
SPARK_CCL_NCCL_FALLBACK=$wheels/nccl/2.30.7/libnccl.so.2 "$folder/answers" "$library" \
    >"$folder/behind" 2>>"$folder/said"
grep ', a foreign one: ' "$folder/real" >"$folder/expected"
missing=$(grep -vxFf "$folder/behind" "$folder/expected") &&
    fail "NCCL's own library, behind this one, answers otherwise:
$missing"
echo "$(wc -l <"$folder/expected") answers for foreign communicators come from NCCL's own library"

# PyTorch begins with every name of NCCL's that it uses.
python=$wheels/torch/bin/python
if ! [ -x "$python" ] || ! "$python" -c 'import torch' 2>/dev/null; then
    echo "SKIPPED: PyTorch is not here: tests/torch.sh fetches it" >&2
    exit
fi
version=$(LD_PRELOAD=$library "$python" -W ignore -c '
import ctypes, torch
version = ctypes.c_int()
assert ctypes.CDLL(None).ncclGetVersion(ctypes.byref(version)) == 0
ids = [bytes(torch.cuda.nccl.unique_id()) for _ in range(2)]
assert ids[0].startswith(b"SCid") and ids[0] != ids[1], ids
print(f"PyTorch {torch.__version__} has NCCL {version.value} of ours, and its unique ids")
')
echo "$version"

# The package knows whose library PyTorch calls, and brings its own if it is imported first.
mkdir "$folder/package"
cp -r python/spark_ccl "$folder/package/"
cp "$(dirname "$library")"/libspark_{ccl,nccl}.so "$folder/package/spark_ccl/"
# serves WHETHER IMPORTS [VARIABLE=VALUE]...
serves() {
    env "PYTHONPATH=$folder/package" "${@:3}" "$python" -W ignore -c "import $2
import torch
from spark_ccl.torch.nccl_library import is_ours
found = (bytes(torch.cuda.nccl.unique_id()).startswith(b'SCid'), is_ours())
assert found == ($1, $1), found" || fail "ours serves PyTorch is not $1 with import $2 ${*:3}"
}
serves True spark_ccl.torch
serves False torch,spark_ccl.torch
serves False spark_ccl.torch SPARK_CCL_TORCH_NCCL=0
serves True torch,spark_ccl.torch "LD_PRELOAD=$library"
echo "PyTorch has ours if spark_ccl.torch is imported first, or by LD_PRELOAD"
