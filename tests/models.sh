#!/bin/bash
# Checks the lock-free structures with loom: every interleaving of a small use of each, and every
# value that the memory model lets a load see. They are the ring, the pieces and the doorbell of the
# shared-memory link, the counters of slots, the mailboxes of helpers, and the history of
# operations. All other shared state is behind locks, or is a flag or a count that says what it
# pairs with.
set -euo pipefail
cd "$(dirname "$0")/.."

# A folder of its own: other flags build everything anew.
export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
exec cargo test -p spark-ccl-compute -p spark-ccl-control -p spark-ccl-slots \
    -p spark-ccl-transport --lib -- model
