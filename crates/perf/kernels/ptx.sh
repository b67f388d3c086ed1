#!/bin/bash
# Compiles check.cu to check.ptx with NVRTC from PyPI (23 MB, cached in
# $XDG_CACHE_HOME/spark-ccl/nvrtc). It uses the NVRTC of CUDA 11.8, because drivers refuse PTX that
# is newer than they are.
#   ptx.sh            writes the file
#   ptx.sh --check    fails if the file is not what the source gives; without a network it is skipped
set -euo pipefail
cd "$(dirname "$0")"
. ../../../tests/vm/lib.sh
. ../../../tests/wheels.sh
version=11.8.89

case $(uname -m) in
x86_64) hash=a8d02f3cba345be56b1ffc3e74d8f61f02bb758dd31b0f20e12277a5a244f756 ;;
aarch64) hash=8ab17ed51e7c4928f7170a0551e3e3b42f89d973bd267ced9688c238b3e10aef ;;
*) echo "SKIPPED: NVIDIA has no NVRTC for $(uname -m)" >&2 && exit 0 ;;
esac

# The output of NVRTC, without its comments about itself.
ptx() {
    /usr/bin/python3 ptx.py "$folder/libnvrtc.so.11.2" check.cu | sed '/^\/\//d'
}

folder=$wheels/nvrtc/$version
if ! fetch_wheel "nvidia-cuda-nvrtc-cu11==$version" "$hash" "$folder" \
    libnvrtc.so.11.2 libnvrtc-builtins.so.11.8; then
    echo "SKIPPED: NVRTC is not here, and could not be fetched" >&2
    exit 0
fi
case ${1:-} in
--check) diff -u check.ptx <(ptx) || { echo "check.ptx is not what check.cu gives" >&2 && exit 1; } ;;
"") ptx >check.ptx ;;
*) echo "usage: ptx.sh [--check]" >&2 && exit 2 ;;
esac
