#!/bin/bash
# Measures PyTorch's collectives over TCP, by spark_ccl and by gloo, with ranks in two network
# namespaces that a virtual cable joins. Needs root, and the environment that tests/torch.sh has
# made.
#   benches/torch-hosts.sh [--ranks RANKS_PER_HOST] [argument of `spark_ccl.bench`]...
set -euo pipefail
. "$(dirname "$0")/cable.sh"

environment=${XDG_CACHE_HOME:-$HOME/.cache}/spark-ccl/torch
if ! [ -x "$environment/bin/torchrun" ]; then
    echo "$environment has no PyTorch: run tests/torch.sh first" >&2
    exit 1
fi
ranks=1
if [ "${1:-}" = --ranks ]; then
    ranks=$2
    shift 2
fi
hosts=("spark-$$-a" "spark-$$-b")

remove() {
    for host in "${hosts[@]}"; do ip netns delete "$host" 2>/dev/null || true; done
}
trap remove EXIT

lay_cable "${hosts[@]}"

# Not from here: the installed package is measured, not the sources.
cd /
# Otherwise gloo looks for the interface by the host's name, which is the same in both.
export GLOO_SOCKET_IFNAME=cable OMP_NUM_THREADS=1
started=()
for number in 1 0; do
    ip netns exec "${hosts[$number]}" "$environment/bin/python" -W ignore -m torch.distributed.run \
        --nnodes 2 --node-rank "$number" --nproc-per-node "$ranks" --master-addr 10.78.0.1 --master-port 4178 \
        -m spark_ccl.bench "$@" &
    started+=($!)
done
for process in "${started[@]}"; do wait "$process"; done
