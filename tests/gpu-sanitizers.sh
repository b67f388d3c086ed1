#!/bin/bash
# Runs each kernel between GPUs under NVIDIA's sanitizers, with all ranks on one GPU.
# Needs a GPU and compute-sanitizer, which is part of the CUDA toolkit.
#   tests/gpu-sanitizers.sh [memcheck|racecheck|synccheck|initcheck]...    (default: the first
#                                        three)
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v compute-sanitizer >/dev/null; then
    echo "SKIPPED: compute-sanitizer is not here" >&2
    exit 0
fi
program=${ONE_GPU:-$(cargo test -p spark-ccl-gpu --test one_gpu --no-run 2>&1 |
    sed -n 's/.*Executable.*(\(.*\))$/\1/p')}
[ $# -gt 0 ] || set -- memcheck racecheck synccheck
for tool in "$@"; do
    echo "== $tool"
    SPARK_CCL_TEST_REQUIRE=gpus compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 \
        "$program" once:: --test-threads=1
done
