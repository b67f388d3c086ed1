#!/bin/bash
# Validates the manifests of `spark-perf launch --kubernetes` against the schemas that Kubernetes
# publishes, of the oldest and the newest version in PyPI's package kubernetes-validate. Skipped
# without a network.
#   tests/manifest.sh       (`SPARK_PERF` names another program)
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
need python3 python3-venv

perf=$(spark_perf)
environment=$(dirname "$cache")/kubernetes
if ! [ -x "$environment/bin/kubernetes-validate" ]; then
    /usr/bin/python3 -m venv "$environment"
    if ! "$environment/bin/pip" install -q kubernetes-validate; then
        echo "SKIPPED: kubernetes-validate is not here, and could not be fetched" >&2
        exit 0
    fi
fi

validate() {
    "$environment/bin/python" -c '
import json, sys
import kubernetes_validate as schemas

versions = sorted(schemas.utils.all_versions(), key=lambda one: [int(part) for part in one.split(".")])
manifest = json.load(sys.stdin)
assert manifest["kind"] == "List" and manifest["items"], manifest
for version in (versions[0], versions[-1]):
    for item in manifest["items"]:
        schemas.validate(item, version, strict=True)
print("valid for Kubernetes", versions[0], "to", versions[-1], *(item["kind"] for item in manifest["items"]))'
}

manifest() {
    "$perf" launch --kubernetes --image registry/train:1 "$@" -- python train.py
}

manifest --nodes 2 | validate
manifest --nodes 3 --slots 8 --gpus 8 --job-name train | validate
manifest --nodes 2 --gpus 1 --rdma rdma/rdma_shared_device_a --networks rail-0,rail-1 | validate
# Errors must be found.
if manifest --nodes 2 | sed 's/"Indexed"/5/' | validate 2>/dev/null; then
    echo "a number is taken for a completion mode" >&2
    exit 1
fi
