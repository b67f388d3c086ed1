#!/bin/bash
# Finds the slowest tests: runs those of the workspace, one at a time, and prints the seconds of the
# slowest.
#   tests/slowest.sh [COUNT]      (default: 10)
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh

# As in tests/run.sh.
export SPARK_CCL_TUNING=off SPARK_CCL_SINGLE_COPY=${SPARK_CCL_SINGLE_COPY:-1}

programs=$(test_programs --workspace)
while IFS=$'\t' read -r todo name folder program; do
    [ "$todo" = run ] || continue
    # The option is unstable; test programs accept it if they are told.
    (cd "$folder" && RUSTC_BOOTSTRAP=1 "$program" --test-threads=1 -Z unstable-options \
        --report-time </dev/null) |
        sed -nE "s/^test (.*) \.\.\. (ok|FAILED) <([0-9.]+)s>$/\3 \2 $name \1/p" || true
done <<<"$programs" | sort -rn | sed -n "1,${1:-10}p"
