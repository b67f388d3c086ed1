#!/bin/bash
# Opens NVIDIA's own libnccl, the oldest and the newest that are supported, on a machine without a
# GPU. The wheels are fetched from PyPI (510 MB); their libraries, 700 MB, are kept in
# $XDG_CACHE_HOME/spark-ccl/nccl. Without a network the test is skipped, unless
# SPARK_CCL_TEST_REQUIRE has "nccl".
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
. tests/wheels.sh

skip() {
    echo "SKIPPED: $1" >&2
    case ,${SPARK_CCL_TEST_REQUIRE:-}, in *,nccl,*) exit 1 ;; *) exit 0 ;; esac
}

# Version and hash of the wheel of nvidia-nccl-cu12. The first for aarch64 is 2.20.3.
case $(uname -m) in
x86_64)
    versions=(
        2.18.1 1a6c4acefcbebfa6de320f412bf7866de856e786e0462326ba1bac40de0b5e71
        2.30.7 8ce1b8213f61f2bfac132e6df890af6450b77cbd140c6ce4e98cb0c2d8e678c9
    ) ;;
aarch64)
    versions=(
        2.20.3 1fd5390c3820eacb8dca6bb4a7ce3c84bca0cbe43d20a34c7951f0230c2061c7
        2.30.7 03ecd776fd1d58fd2c9a0a687dcf8db9ecd0057382dba646fa3d65786d4a9ea1
    ) ;;
*) skip "NVIDIA has no NCCL for $(uname -m)" ;;
esac

main() {
    local folders=() i
    for ((i = 0; i < ${#versions[@]}; i += 2)); do
        folders+=("$wheels/nccl/${versions[i]}")
        fetch_wheel "nvidia-nccl-cu12==${versions[i]}" "${versions[i + 1]}" \
            "${folders[-1]}" libnccl.so.2 ||
            skip "NCCL's own libraries are not here, and could not be fetched"
    done
    SPARK_CCL_TEST_REQUIRE=nccl SPARK_CCL_TEST_NCCL=$(IFS=: && echo "${folders[*]}") \
        cargo test --workspace --test real_nccl -- --nocapture "$@"
}

main "$@"
