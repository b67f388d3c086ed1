#!/bin/bash
# Runs the tests of RDMA in one emulated machine, once for each layout of its rails.
#   tests/vm/rdma-tests.sh [-b] [-s] [-k 6.12] [-m MODE]... [-t SECONDS] [-p PACKAGE]... [NAME]
#   -b          only builds
#   -s          under AddressSanitizer; any toolchain will do
#   -k, -m, -t  as in rdma.sh, and -m tools: spark-perf on the rails of `wire`. When no layout is
#               named: all four, or with another kernel the tests of what a kernel decides, on the
#               rails of `wire`
#   -p          packages to build; else the workspace, as other tests do, so that nothing is built
#               anew
#   NAME        tests whose name contains it, instead of those named below
# The tests find the layout in RAILS, and the command `rails` of rails.sh. A test that needs only
# what the machine has may not be skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/vm/lib.sh

# Layouts of the rails (`kernel`: those of `wire`, on another kernel; `tools`: those of `wire`,
# apart since both take minutes), the folder of a package, and words: tests with one of them in
# their name; without words, all its tests. Tests that do not depend on the layout run once.
suites='one,wire,link-local,kernel crates/verbs
wire crates/transport rdma::link
kernel crates/transport rdma::link::tests::a_link rdma::link::tests::lending failover::loss
one,link-local crates/transport rdma::link::tests::both_rails
wire . rdma:: random_faults_over_rdma
kernel . rdma::memory rdma::lost_packets
one,link-local . rdma::ranks_reduce rdma::registered rdma::a_killed rdma::one_pair
link-local crates/perf gids
tools crates/perf rdma::'

main() {
    local option default=(one wire link-local tools) modes=() kernel=() seconds=1800 scope=() target=() only_builds='' needs=rails,rdma,link-local-gid,single-copy,fake-gpu-library
    while getopts bsk:m:t:p: option; do
        case $option in
        b) only_builds=yes ;;
        s) sanitize ;;
        k)
            kernel=(-k "$OPTARG")
            default=(kernel)
            # Debian's default kernel has no udmabuf.
            needs+=,udmabuf
            ;;
        m) modes+=("$OPTARG") ;;
        t) seconds=$OPTARG ;;
        p) scope+=(-p "$OPTARG") ;;
        *) exit 64 ;;
        esac
    done
    shift $((OPTIND - 1))
    [ ${#modes[@]} != 0 ] || modes=("${default[@]}")
    [ ${#scope[@]} != 0 ] || scope=(--workspace)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    test_programs "${target[@]}" "${scope[@]}" >"$work/programs"
    [ -z "$only_builds" ] || return 0
    need g++
    mkdir "$work/fake-gpus"
    fake_gpus "$work/fake-gpus"
    list_tests "${1:-}"
    cat >"$work/guest.sh" <<GUEST
. $PWD/tests/vm/tests-guest.sh
${FAULTS_CASES:+export FAULTS_CASES=$FAULTS_CASES FAULTS_SEED=$FAULTS_SEED}
export ASAN_OPTIONS=detect_leaks=0 TEST_PATIENCE=4 SPARK_CCL_TEST_FAKE_GPUS=$work/fake-gpus
code=0
for tests in ${modes[*]}; do
    echo "=== tests: \$tests"
    case \$tests in kernel | tools) RAILS=wire ;; *) RAILS=\$tests ;; esac
    rails make \$RAILS || exit
    SPARK_CCL_TEST_REQUIRE=$needs
    [ \$RAILS = one ] || SPARK_CCL_TEST_REQUIRE=\$SPARK_CCL_TEST_REQUIRE,cables
    export SPARK_CCL_TEST_REQUIRE
    run_tests $work/tests-\$tests --skip compile_fail --skip stand_in --test-threads 1 ${FAULTS_CASES:+--nocapture} || code=1
done
exit \$code
GUEST
    local first=${modes[0]/kernel/wire}
    tests/vm/rdma.sh "${kernel[@]}" -m "${first/tools/wire}" -t "$seconds" \
        "${files[@]}" -- ". $work/guest.sh"
}

# As in tests/sanitizers.sh. The standard library is not built anew, so a stable toolchain will do
# with RUSTC_BOOTSTRAP.
sanitize() {
    target=(--target "$(rustc -vV | sed -n 's/^host: //p')")
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/address
}

# Fills $work/tests-MODE for each, for run_tests, and `files`, for rdma.sh.
list_tests() {
    local name=$1 layouts package words mode todo target folder file with=()
    files=(-a "$work/guest.sh" -a tests/vm/tests-guest.sh -a "$work/fake-gpus/libcuda.so.1")
    while read -r layouts package words; do
        while IFS=$'\t' read -r todo target folder file; do
            [ "$folder" = "$(realpath "$package")" ] || continue
            files+=(-a "$file")
            [ "$todo" = run ] || continue
            for mode in ${layouts//,/ }; do
                echo "$target $folder $file ${name:-$words}" >>"$work/tests-$mode"
            done
        done <"$work/programs"
    done <<<"$suites"
    # `tools` has none where other packages were built.
    for mode in "${modes[@]}"; do
        if [ ! -e "$work/tests-$mode" ]; then
            echo "no tests of the layout $mode were built"
            continue
        fi
        files+=(-a "$work/tests-$mode")
        with+=("$mode")
    done
    modes=("${with[@]}")
    [ ${#modes[@]} != 0 ]
}

main "$@"
