#!/bin/bash
# Connects a queue pair of the crate `ibverbs` to one of ours, in the emulated machine of rdma.sh.
# The build is kept in $XDG_CACHE_HOME/spark-ccl. Needs Debian 12.
#   tests/vm/interop.sh [option of rdma.sh]...
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/vm/lib.sh

# The crate makes rdma-core's headers by cmake, and reads them by libclang.
need cmake make gcc g++ pkg-config libibverbs-dev libclang1 libclang-common-14-dev

package=tests/interop/Cargo.toml
cargo fmt --manifest-path $package --check
CARGO_TARGET_DIR=$(dirname "$cache")/interop
export CARGO_TARGET_DIR
program=$(test_programs --locked --manifest-path $package --test interop | cut -f 4)
tests/vm/rdma.sh "$@" -a "$program" -- "$(basename "$program") --test-threads 1"
