#!/bin/bash
# Type-checks the crate for candle with its GPU code. candle compiles kernels with NVIDIA's compiler
# for that: without it, this says so, and passes without a check.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v nvcc >/dev/null; then
    echo "NOT CHECKED: no nvcc, which candle's kernels need"
    exit 0
fi
exec cargo check --locked --quiet --manifest-path crates/candle/Cargo.toml --features cuda --lib \
    --examples
