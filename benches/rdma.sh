#!/bin/bash
# Measures spark-perf and other programs over soft-RoCE in the emulated machine of tests/vm/rdma.sh:
# bandwidth on one rail, on two that are limited to the same rate, latency, and all_reduce. All take
# turns, in one boot; a line is the median of the rounds, with the least and the most. Before that,
# the cost of posting without a kernel; after it, the model's predictions for two Sparks.
#   benches/rdma.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/.."

main() {
    local rounds=${1:-5}
    program=${CARGO_TARGET_DIR:-target}/release/spark-perf
    cargo build --release --bin spark-perf
    results=$(mktemp)
    trap 'rm "$results"' EXIT
    in_the_machine "$rounds" | tee "$results" | grep -v '^RESULT' >&2
    posting >>"$results"
    table <"$results"
    on_paper
}

in_the_machine() {
    tests/vm/rdma.sh -m wire -t 600 -a "$program" -a benches/rdma/guest.sh -- \
        "sh $PWD/benches/rdma/guest.sh $1"
}

# What criterion prints, long names on a line of their own: "name time: [least ns middle ns most
# ns]".
posting() {
    cargo bench -p spark-ccl-verbs --bench post 2>/dev/null | awk '
        /^post\// { name = $0; sub(/ *time:.*/, "", name); gsub(/ /, "_", name) }
        /time:/ {
            gsub(/.*\[|\]/, "")
            for (value = 1; value < 6; value += 2) print "RESULT", name, 1, $value, $(value + 1)
        }'
}

table() {
    echo "| what | size | median | least | most | |"
    echo "|---|---|---|---|---|---|"
    grep '^RESULT' | sort -s -k 2,3 -k 4n | awk '
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
}

# Between two Sparks, over one rail and over both, with a core for copies and reductions as fast as
# one here, or twice as fast.
on_paper() {
    local core beta path collective
    for core in 25 50; do
        for beta in 12 23.7; do
            for path in safe zero-copy; do
                for collective in all_reduce all_gather; do
                    "$program" simulate --ranks 2 --bytes 8,4K,64K,1M,16M,128M,1G --algo direct,ring \
                        --alpha 2.4 --beta $beta --memory $core --path $path --collective $collective
                done
            done
        done
    done
}

main "$@"
