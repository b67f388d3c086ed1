#!/bin/bash
# Builds spark-perf, and the tests of code that depends on the processor, for aarch64, and runs them
# in an emulated machine.
#   tests/vm/aarch64.sh [-b]
#   -b  only builds
# Needs Debian 12, whose packages bring Rust's library for aarch64; takes a few minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/vm/lib.sh

# Packages with atomics, vector instructions, and layouts that others see; the rest is compiled as
# far as spark-perf needs it.
packages=(compute fork transport types verbs)
targets=(fork shm_processes suite)
# Tests of the suite with one of these in their name. Random collectives and random faults stand for
# the tests of all cases, of many processes, or of deadlines, which take half an hour here.
suite='collectives_random:: campaign::random_faults registered:: single_copy:: nonblocking types:: untyped:: values:: waiting::'
skip='--skip every_path_computes_the_same'
# What the machine has: a test that needs it and does not find it fails.
needs=ipv6,single-copy
target=aarch64-unknown-linux-gnu
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/aarch64

main() {
    install_tools
    if [ "${1:-}" = -b ]; then
        build >/dev/null
        return
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    build >"$work/programs"
    make_guest "$work/root" "$work/programs"
    boot "${VM_SECONDS:-1800}" "$work/root" qemu-system-aarch64 -M virt -cpu neoverse-n1 \
        -accel tcg,thread=multi -smp 2 -m 3072 -nic none -append "console=ttyAMA0 quiet panic=-1" \
        -kernel "$(echo "$(unpacked "$(newest_kernel linux-image-cloud-arm64:arm64)")"/boot/vmlinuz-*)"
}

install_tools() {
    if ! dpkg --print-foreign-architectures | grep -qx arm64; then
        with_apt as_root dpkg --add-architecture arm64
        with_apt as_root apt-get update -qq
    fi
    need qemu-system-arm cpio python3 rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu \
        libc6-dev-arm64-cross
}

# Prints the lines of test_programs.
build() (
    # Symbols would be most of what the machine has to load.
    export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_STRIP=true RUSTC=/usr/bin/rustc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    # For the tests named `cli`, which are not run, cargo builds spark-perf, with the features that
    # it has here anyway.
    test_programs --target "$target" -p spark-ccl -p spark-perf "${packages[@]/#/-pspark-ccl-}" --lib \
        "${targets[@]/#/--test=}" --test cli
)

make_guest() {
    local root=$1 programs=$2 todo name folder file library
    base_system "$root" "$(unpacked busybox-static:arm64)/bin/busybox"
    mkdir -p "$root/lib"
    for library in ld-linux-aarch64.so.1 libc.so.6 libm.so.6 libgcc_s.so.1; do
        cp -L "/usr/aarch64-linux-gnu/lib/$library" "$root/lib/"
    done
    while IFS=$'\t' read -r todo name folder file; do
        [ "$name" != cli ] || continue
        # Tests know the paths of other programs, and of their package's folder.
        place "$root" "$file"
        mkdir -p "$root$folder"
        if [ "$todo" = run ]; then
            echo "$name $folder $file $([ "$name" != suite ] || echo "$suite")" >>"$root/tests"
        else
            ln -s "$file" "$root/bin/$name"
        fi
    done <"$programs"
    place "$root" "$PWD/tests/vm/tests-guest.sh"
    cat >"$root/guest.sh" <<GUEST
. $PWD/tests/vm/tests-guest.sh
export PROPTEST_CASES=16 RUST_BACKTRACE=1 TEST_PATIENCE=20 SPARK_CCL_TEST_REQUIRE=$needs
code=0
run_tests /tests $skip || code=1
# Fails if a value is wrong.
spark-perf all_reduce -b 8 -e 1M -f 8 -n 3 || code=1
exit \$code
GUEST
}

main "$@"
