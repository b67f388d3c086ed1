#!/bin/bash
# Builds the workspace's tests for aarch64 and runs them in an emulated machine, and spark-perf.
#   tests/vm/aarch64.sh [-b] [-p PACKAGE]...    (all packages when none is named)
#   -b  only builds
# Needs Debian 12, whose packages bring Rust's library for aarch64; takes a few minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/vm/lib.sh

# Left out are test targets (which are not built then) and modules that call a compiler, or read sources, which the
# machine has not; those that go through all cases of something that knows no machine; and those that start many
# processes or threads, or wait for their deadlines: emulated, they take half an hour. Random collectives and random
# faults stand for these, fewer than elsewhere.
left_out='^(c_program|compile_fail|fake_nccl|correct|hosts|large|cli|imports|kernels)$'
skip='--skip compile_fail --skip collectives::
    --skip faults:: --skip mismatch:: --skip stopped:: --skip hosts::
    --skip every_path_computes_the_same --skip sixty_four_ranks'
# What the machine has: tests that need it and do not find it fail.
needs=ipv6,no-gpus,single-copy
target=aarch64-unknown-linux-gnu
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/aarch64

main() {
    install_tools
    if [ "${1:-}" = -b ]; then
        build "${@:2}" >/dev/null
        return
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    build "$@" >"$work/programs"
    make_guest "$work/root" "$work/programs"
    boot "${VM_SECONDS:-2400}" "$work/root" qemu-system-aarch64 -M virt -cpu neoverse-n1 \
        -accel tcg,thread=multi -smp 2 -m 3072 -nic none -append "console=ttyAMA0 quiet panic=-1" \
        -kernel "$(echo "$(unpacked "$(newest_kernel linux-image-cloud-arm64:arm64)")"/boot/vmlinuz-*)"
}

install_tools() {
    if ! dpkg --print-foreign-architectures | grep -qx arm64; then
        with_apt dpkg --add-architecture arm64
        with_apt apt-get update -qq
    fi
    need qemu-system-arm cpio python3 rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu \
        libc6-dev-arm64-cross
}

# Prints what test_programs does.
build() (
    # Symbols would be most of what the machine has to load.
    export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_STRIP=true RUSTC=/usr/bin/rustc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    if [ $# != 0 ]; then
        test_programs --target $target "$@"
    else
        # shellcheck disable=SC2046
        test_programs --target $target --workspace --lib --bins $(tests)
        # `cargo test` would build tests of examples, if only some targets are named.
        programs build --target $target --workspace --examples
    fi
)

# What the machine runs, as arguments; with `cli`, cargo builds spark-perf.
tests() {
    echo --test cli
    cargo metadata --no-deps --format-version 1 | python3 -c '
import json, re, sys
for package in json.load(sys.stdin)["packages"]:
    for target in package["targets"]:
        if target["kind"] == ["test"] and not re.search(sys.argv[1], target["name"]):
            print("--test", target["name"])' "$left_out"
}

make_guest() {
    local root=$1 programs=$2 todo name folder file library
    base_system "$root" "$(unpacked busybox-static:arm64)/bin/busybox"
    mkdir -p "$root/lib"
    for library in ld-linux-aarch64.so.1 libc.so.6 libm.so.6 libgcc_s.so.1; do
        cp -L "/usr/aarch64-linux-gnu/lib/$library" "$root/lib/"
    done
    while IFS=$'\t' read -r todo name folder file; do
        # Tests know the paths of other programs, and of their package's folder.
        place "$root" "$file"
        mkdir -p "$root$folder"
        if [ "$todo" = run ] && [[ ! $name =~ $left_out ]]; then
            printf '%s %s %s\n' "$name" "$folder" "$file" >>"$root/tests"
        elif [ "$name" = spark-perf ]; then
            ln -s "$file" "$root/bin/spark-perf"
        fi
    done <"$programs"
    place "$root" "$PWD/tests/vm/tests-guest.sh"
    cat >"$root/guest.sh" <<GUEST
. $PWD/tests/vm/tests-guest.sh
export PROPTEST_CASES=16 RUST_BACKTRACE=1 TEST_PATIENCE=20 SPARK_CCL_TEST_REQUIRE=$needs
code=0
run_tests /tests ${skip//$'\n'/ } || code=1
if [ -e /bin/spark-perf ]; then
    # Fails where a value is wrong.
    spark-perf all_reduce -b 8 -e 1M -f 8 -n 3 || code=1
fi
exit \$code
GUEST
}

main "$@"
