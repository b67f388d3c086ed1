#!/bin/bash
# Runs the tests under ThreadSanitizer and AddressSanitizer, and those of plain memory under Miri.
#   tests/sanitizers.sh [--require] [thread|address|miri]...      (default: all)
#   tests/sanitizers.sh [--require] device      of `thread` only device memory on GPUs that are none
# Needs the sources of std, `rustup component add rust-src`, and for Miri a nightly toolchain,
# `rustup toolchain install nightly -c rust-src,miri`. A part whose tools are missing is skipped,
# with `--require` it is an error.
#
# Left out of all parts: types, sched, config, launcher, console, cluster and perf, which share no
# memory between threads, or have no unsafe code but calls of C; the C ABI, since its test is a
# program in C, which would need the sanitizer's runtime; tests that start a compiler or an example,
# since none of our code runs in the instrumented program.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh

packages=(-p spark-ccl -p spark-ccl-transport -p spark-ccl-verbs -p spark-ccl-control
    -p spark-ccl-bootstrap -p spark-ccl-compute)
skips=(--skip compile_fail:: --skip examples::)
target=$(rustc -vV | sed -n 's/^host: //p')
folder=${CARGO_TARGET_DIR:-target}
# As in tests/run.sh.
export SPARK_CCL_TUNING=off
require=

# has TOOLCHAIN FILE COMPONENT: whether a toolchain has a component; says so if not.
has() {
    local folder
    if folder=$(rustup run "$1" rustc --print sysroot 2>/dev/null) && [ -e "$folder/$2" ]; then
        return 0
    fi
    echo "skipped: $part, for lack of a toolchain $1 with $3"
    [ -z "$require" ] || exit 1
    return 1
}

# sanitized SANITIZER FLAGS ARGUMENT...: cargo's tests. RUSTC_BOOTSTRAP makes any toolchain do.
sanitized() {
    RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$folder/$1 RUSTFLAGS="-Zsanitizer=$1 $2" \
        cargo test --target "$target" "${@:3}"
}

# TSan identifies memory by its address, and sees neither synchronisation in code that was compiled
# without it nor system calls that do not go through libc. So ranks that are threads map shared
# memory at one address (`one_mapping`), std is built anew, and rustix calls libc. TSan's functions
# are exported for the threads that act as kernels (crates/perf/tests/fake_gpu). There are no
# suppressions: every report counts.
tsan() {
    TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1 \
        sanitized thread "--cfg one_mapping --cfg rustix_use_libc -Clink-arg=-rdynamic" \
        -Zbuild-std "$@"
}

# Left out: private copies of shared memory. With one mapping for all they are no copies, and rustix
# on libc cannot replace a mapping by another.
thread() {
    has stable lib/rustlib/src/rust/library rust-src || return 0
    tsan "${packages[@]}" --lib --tests --no-fail-fast -- "${skips[@]}" \
        --skip memory::tests::a_private_copy_keeps_the_address_and_the_contents \
        --skip memory::tests::no_bytes_are_memory_too \
        --skip memory::tests::readers_see_the_address_mapped_all_the_while \
        --skip a_private_copy_is_out_of_the_peers_reach \
        --skip registered::memory_keeps_its_contents_after_an_abort
    # With kernels that the test compiles.
    SPARK_CCL_TEST_CXXFLAGS=-fsanitize=thread tsan -p spark-ccl-slots --lib
    device
}

# Device memory by way of the host, from fake kernels to fake RDMA devices.
device() {
    has stable lib/rustlib/src/rust/library rust-src || return 0
    local libraries
    libraries=$(mktemp -d)
    fake_gpus "$libraries" -fsanitize=thread
    for seed in "" 1 2 3; do
        staged "$libraries" "$seed" 0
        staged "$libraries" "$seed" 1 --skip messages:: --skip by_mail:: --skip unstaged::
    done
    rm -r "$libraries"
}

# staged LIBRARIES SEED PINNED ARGUMENT...: with a seed, over RDMA devices, which belong to one
# process.
staged() {
    [ -z "$2" ] || local -x SPARK_CCL_TEST_RDMA_SEED=$2
    SPARK_CCL_GPU_PINNED=$3 LD_LIBRARY_PATH=$1 FAKE_GPUS=2 SPARK_CCL_TEST_REQUIRE=gpus,fake-gpus \
        tsan -p spark-ccl --test staged -- --skip processes:: "${@:4}"
}

# Leaks do not count: tests forget handles on purpose, so their buffers stay.
address() {
    ASAN_OPTIONS=detect_leaks=0 sanitized address "" "${packages[@]}" -p spark-ccl-nccl \
        --lib --tests --no-fail-fast -- "${skips[@]}"
}

# Miri supports no shared memory files, few sockets, and no assembly (streaming stores, changes of
# the processor's mode). So it runs the portable kernels, without tests of millions of elements;
# messages that are lent over TCP; and the fake link, without the conformance suite, which gives up
# on a link that is so slow.
miri() {
    has nightly bin/miri miri || return 0
    # Proptest asks for the working directory.
    export CARGO_TARGET_DIR=$folder/miri MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2
    cargo +nightly miri test -p spark-ccl-compute --lib -- cpu:: delayed:: divide:: \
        --skip both_destinations_are_sources --skip factors_and_operands_in_place --skip every_ \
        --skip halves_with_those_at_the_edges --skip the_mode_of_the_thread
    cargo +nightly miri test -p spark-ccl-transport --lib -- fake:: tcp::frame:: --skip conforms_
    # On the stand-in for libibverbs, without devices with threads and tests that open libraries or
    # ask for limits. Memory that a device may still have is leaked.
    MIRIFLAGS="$MIRIFLAGS -Zmiri-ignore-leaks" cargo +nightly miri test -p spark-ccl-verbs --lib \
        -- tests:: --skip network:: --skip missing_library --skip another_library --skip the_memory_limit --skip sysfs
}

if [ "${1:-}" = --require ]; then
    require=1
    shift
fi
[ $# != 0 ] || set -- thread address miri
for part in "$@"; do
    case $part in
    thread | device | address | miri) $part ;;
    *) echo "unknown part $part" >&2 && exit 2 ;;
    esac
done
