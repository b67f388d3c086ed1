#!/bin/bash
# Measures what a second network interface gains: all_reduce between two network namespaces, over
# one virtual cable and over two, each limited to the same rate. Needs root.
#   benches/rails.sh [RATE]
set -euo pipefail
cd "$(dirname "$0")/.."

rate=${1:-200mbit}
bytes=16M
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
hosts=("spark-$$-a" "spark-$$-b")

cargo build --release --bin spark-perf

remove() {
    for host in "${hosts[@]}"; do ip netns delete "$host" 2>/dev/null || true; done
}
trap remove EXIT

for host in "${hosts[@]}"; do
    ip netns add "$host"
    ip -n "$host" link set lo up
done

lay() {
    local cable=rail$1 number host
    ip link add "$cable" netns "${hosts[0]}" type veth peer "$cable" netns "${hosts[1]}"
    for number in 0 1; do
        ip -n "${hosts[$number]}" address add "10.78.$1.$((number + 1))/24" dev "$cable"
        ip -n "${hosts[$number]}" link set "$cable" addrgenmode none up
        ip netns exec "${hosts[$number]}" \
            tc qdisc add dev "$cable" root tbf rate "$rate" burst 256kb latency 100ms
    done
    for host in "${hosts[@]}"; do
        until ip -n "$host" link show "$cable" | grep -q "state UP"; do sleep 0.01; done
    done
}

# Microseconds of a call.
measure() {
    local report rank
    report=$(mktemp)
    for rank in 1 0; do
        env SPARK_CCL_RANK=$rank SPARK_CCL_SIZE=2 MASTER_ADDR=10.78.0.1 MASTER_PORT=4177 \
            SPARK_CCL_SECRET=a-secret-of-this-measurement \
            ip netns exec "${hosts[$rank]}" "$target/release/spark-perf" all_reduce \
            -b "$bytes" -e "$bytes" -n 5 >"$report.$rank" &
    done
    wait
    awk '$1 ~ /^[0-9]+$/ { print $6 }' "$report.0"
    rm "$report"*
}

lay 0
one=$(measure)
lay 1
two=$(measure)
awk -v one="$one" -v two="$two" -v rate="$rate" -v bytes="$bytes" 'BEGIN {
    printf "all_reduce of %s at %s: one rail %.0f us, two rails %.0f us, ratio %.2f\n",
        bytes, rate, one, two, one / two
}'
