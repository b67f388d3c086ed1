#!/bin/bash
# Makes src/header/functions.rs and types.rs from the header, with the bindgen of Debian 12. They
# are not part of the library: src/header.rs compares them with it when tests are compiled.
#   bindings.sh            writes the files
#   bindings.sh --check    fails if the files are not what the header gives
set -euo pipefail
cd "$(dirname "$0")"
. ../tests/vm/lib.sh
. ../tests/bindgen.sh
header=include/spark_ccl.h

made() {
    echo "// Made by bindings.sh from spark_ccl.h. Do not edit."
    echo
    bindgen --disable-header-comment --no-layout-tests --no-doc-comments --default-enum-style consts \
        --no-prepend-enum-name --size_t-is-usize --use-core --ctypes-prefix core::ffi --no-derive-debug "$@" "$header" |
        pointers | rustfmt --edition 2024 --config max_width=100
}

# The types are the library's own, so that functions can be compared as a whole; but for the
# function that C passes a result to, which may be any number.
functions() {
    made --raw-line "use super::library::*;" --allowlist-function "spark_ccl_.*" --blocklist-function spark_ccl_result_string \
        --blocklist-type "spark_ccl_.*|__uint64_t"
}

types() {
    made --allowlist-type "spark_ccl_.*" --allowlist-var "SPARK_CCL_.*" --blocklist-type "__uint64_t"
}

need bindgen libclang1 libclang-common-14-dev
for part in functions types; do
    file=src/header/$part.rs
    case ${1:-} in
    --check) diff -u "$file" <($part) || { echo "$file is not what the header gives: run ffi/bindings.sh" >&2 && exit 1; } ;;
    "") $part >"$file" ;;
    *) echo "usage: bindings.sh [--check]" >&2 && exit 2 ;;
    esac
done
