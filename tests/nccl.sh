#!/bin/bash
# Opens NVIDIA's own libnccl, the oldest and the newest that are supported, on a machine without a GPU.
# The wheels are fetched from PyPI (510 MB); what is kept of them, 700 MB, is in
# $XDG_CACHE_HOME/spark-ccl/nccl. Without a network the test is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
cache=$(dirname "$cache")/nccl

# Version and hash of the wheel of nvidia-nccl-cu12. The first for aarch64 is 2.20.3.
case $(uname -m) in
x86_64)
    wheels=(
        2.18.1 1a6c4acefcbebfa6de320f412bf7866de856e786e0462326ba1bac40de0b5e71
        2.30.7 8ce1b8213f61f2bfac132e6df890af6450b77cbd140c6ce4e98cb0c2d8e678c9
    ) ;;
aarch64)
    wheels=(
        2.20.3 1fd5390c3820eacb8dca6bb4a7ce3c84bca0cbe43d20a34c7951f0230c2061c7
        2.30.7 03ecd776fd1d58fd2c9a0a687dcf8db9ecd0057382dba646fa3d65786d4a9ea1
    ) ;;
*) echo "SKIPPED: NVIDIA has no NCCL for $(uname -m)" >&2 && exit 0 ;;
esac

main() {
    local folders=() i
    for ((i = 0; i < ${#wheels[@]}; i += 2)); do
        fetch "${wheels[i]}" "${wheels[i + 1]}" || skip_without_network
        folders+=("$cache/${wheels[i]}")
    done
    SPARK_CCL_TEST_NCCL=$(IFS=: && echo "${folders[*]}") \
        cargo test -p spark-ccl-nccl --test real_nccl -- --nocapture "$@"
}

# fetch VERSION HASH: puts libnccl.so.2 into a folder with the version's name.
fetch() {
    local version=$1 folder=$cache/$1 work said
    [ -e "$folder/libnccl.so.2" ] && return
    need python3-pip
    mkdir -p "$folder"
    work=$(mktemp -d -p "$cache")
    echo "nvidia-nccl-cu12==$version --hash=sha256:$2" >"$work/wheels"
    if ! /usr/bin/python3 -m pip download -q --no-deps --only-binary :all: --require-hashes \
        -r "$work/wheels" -d "$work" 2>&1 | tee "$work/said" >&2 ||
        ! /usr/bin/python3 -m zipfile -e "$work"/*.whl "$work"; then
        # What is there and is another thing than it should be is no reason to go on without it.
        said=$(cat "$work/said")
        rm -rf "$work"
        [[ ${said^^} != *HASH* ]] || exit 1
        return 1
    fi
    mv "$work/nvidia/nccl/lib/libnccl.so.2" "$folder/"
    rm -rf "$work"
}

skip_without_network() {
    echo "SKIPPED: NCCL's own libraries are not here, and could not be fetched" >&2
    exit 0
}

main "$@"
