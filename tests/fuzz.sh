#!/bin/bash
# Fuzzes code that parses bytes from elsewhere: the targets in the fuzz.rs of each crate.
#   tests/fuzz.sh SECONDS          each target for that time, with valid inputs that are changed at
#                                  random
#   tests/fuzz.sh SECONDS NAME...  these targets, by libFuzzer, which follows what code an input
#                                  reaches; the inputs that it finds are kept in
#                                  $XDG_CACHE_HOME/spark-ccl/fuzz
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
if [ $# = 0 ]; then
    # Built like other tests, so nothing is built anew.
    SPARK_CCL_FUZZ_SECONDS=$seconds cargo test --workspace --lib -- --exact \
        fuzz::any_bytes_are_read_or_refused --nocapture
    exit
fi

# The flags of cargo-fuzz without those of sanitizers, which take a nightly toolchain.
instrumented="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
host=$(rustc -vV | sed -n 's/^host: //p')
folder=${XDG_CACHE_HOME:-$HOME/.cache}/spark-ccl/fuzz
export CARGO_TARGET_DIR=$folder/target
# With an explicit target, build scripts and macros are not instrumented.
RUSTFLAGS=${instrumented//$'\n'/ } cargo build --release --manifest-path fuzz/Cargo.toml --target "$host"
for name in "$@"; do
    mkdir -p "$folder/$name"
    FUZZ_TARGET=$name FUZZ_SEEDS=$folder/$name "$CARGO_TARGET_DIR/$host/release/any" -max_total_time="$seconds" \
        -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$folder/" "$folder/$name"
done
