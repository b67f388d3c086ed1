#!/bin/bash
# Checks licences, versions and sources of all dependencies (deny.toml). cargo-deny is
# compiled if it is missing, which takes a minute or two, and kept in $XDG_CACHE_HOME/spark-ccl.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${XDG_CACHE_HOME:-$HOME/.cache}/spark-ccl/cargo-deny
export PATH=$folder/bin:$PATH
# Without optimisations, which would take several times as long as the check.
command -v cargo-deny >/dev/null || cargo install --locked --quiet --debug --root "$folder" cargo-deny@0.20.2
cargo deny --workspace check licenses bans sources
# The crate for candle has a lock file of its own. candle itself needs several versions of crates.
cargo deny --locked --manifest-path crates/candle/Cargo.toml check licenses sources
