#!/bin/bash
# Compiles kernels to packed images with NVRTC from PyPI (90 MB; 115 MB of it are kept in
# $XDG_CACHE_HOME/spark-ccl/nvrtc). It uses the NVRTC of CUDA 12.9, the first that knows all of these
# GPUs: drivers from 525 on load its cubins for the GPUs that they know. PTX is for later GPUs, whose
# drivers are newer than it.
#   build.sh            writes the images and the manifest of each folder with kernels
#   build.sh --check    fails if they are not what the sources give; without a network it is skipped
set -euo pipefail
cd "$(dirname "$0")/../../.."
. tests/vm/lib.sh
. tests/wheels.sh
version=12.9.86

case ${1:-} in
"" | --check) ;;
*) echo "usage: build.sh [--check]" >&2 && exit 2 ;;
esac
case $(uname -m) in
x86_64) hash=210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4 ;;
aarch64) hash=096d4de6bda726415dfaf3198d4f5c522b8e70139c97feef5cd2ca6d4cd9cead ;;
*) echo "SKIPPED: NVIDIA has no NVRTC for $(uname -m)" >&2 && exit 0 ;;
esac
nvrtc=$wheels/nvrtc/$version
if ! fetch_wheel "nvidia-cuda-nvrtc-cu12==$version" "$hash" "$nvrtc" \
    libnvrtc.so.12 libnvrtc-builtins.so.12.9; then
    echo "SKIPPED: NVRTC is not here, and could not be fetched" >&2
    exit 0
fi

# images FOLDER TARGET...: a folder's kernels, for GPUs of these compute capabilities.
images() {
    /usr/bin/python3 crates/cuda/kernels/build.py "${mode[@]}" "$nvrtc/libnvrtc.so.12" "$version" "$@"
}

mode=("$@")
# spark-perf checks results on all GPUs that NCCL works with.
images crates/perf/kernels sm_60 sm_70 sm_80 sm_90 sm_100 sm_120 compute_50
# Collectives within a host run on GPUs from sm_80 on. From sm_90 on, all images have to wait for the kernel ahead,
# so the PTX is for that: GPUs below it have cubins.
images crates/gpu/kernels sm_80 sm_90 sm_100 sm_120 compute_90
# By way of the host, on the same GPUs.
images crates/slots/kernels sm_80 sm_90 sm_100 sm_120 compute_90
