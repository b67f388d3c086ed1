#!/bin/bash
# Measures all_reduce beside Open MPI's and MPICH's, all in one go, and writes the tables to
# docs/performance.md. Debian 12, on a machine that does nothing else.
#   benches/peers.sh [--rounds N] [--max BYTES] [--factor N] [--ranks N] [--print-only]
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(gcc libc6-dev openmpi-bin libopenmpi-dev mpich libmpich-dev python3 util-linux)

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
        missing+=("$package")
done
if [ ${#missing[@]} != 0 ]; then
    echo "installing ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
mkdir -p "$target/peers"
for mpi in openmpi mpich; do
    "mpicc.$mpi" -std=c99 -O2 -Wall -Wextra -Werror \
        -o "$target/peers/$mpi" benches/peers/all_reduce.c
done
cargo build --release --bin spark-perf

exec python3 -B benches/peers/measure.py --document docs/performance.md \
    --openmpi "$target/peers/openmpi" --mpich "$target/peers/mpich" \
    --spark-perf "$target/release/spark-perf" "$@"
