#!/bin/bash
# Measures what spark-perf and others' programs reach over soft-RoCE in the emulated machine of
# tests/vm/rdma.sh: bandwidth on one rail, on two that are limited to the same rate, and latency. All take
# turns, in one boot; a line is the median of the rounds, with the least and the most. About two minutes.
#   benches/rdma.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-5}
program=${CARGO_TARGET_DIR:-target}/release/spark-perf
cargo build --release --bin spark-perf
results=$(mktemp)
trap 'rm "$results"' EXIT

tests/vm/rdma.sh -m wire -t 300 -a "$program" -a benches/rdma/guest.sh -- \
    "sh $PWD/benches/rdma/guest.sh $rounds" | tee "$results" | grep -v '^RESULT' >&2

echo "| what | size | median | least | most | |"
echo "|---|---|---|---|---|---|"
grep '^RESULT' "$results" | sort -s -k 2,3 -k 4n | awk '
    function line() {
        if (count) {
            middle = (values[int((count + 1) / 2)] + values[int(count / 2) + 1]) / 2
            printf "| %s | %.3g | %.3g | %.3g | %s |\n", name, middle, values[1], values[count], unit
        }
        count = 0
    }
    $2 " | " $3 != name { line() }
    { name = $2 " | " $3; values[++count] = $4; unit = $5 }
    END { line() }'
