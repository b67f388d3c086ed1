#!/bin/bash
# Runs the tests of RDMA in one emulated machine, once for each layout of its rails.
#   tests/vm/rdma-tests.sh [-k 6.12] [-m MODE]... [-t SECONDS] [-p PACKAGE]... [NAME]
#   -k, -m, -t  as in rdma.sh; all layouts when none is named
#   -p          packages to build; else the workspace, as other tests do, so that nothing is built anew
#   NAME        tests whose name contains it, instead of those named below
# The tests see SPARK_CCL_TEST_RDMA=1, the layout in RAILS, and the command `rails` of rails.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/vm/lib.sh

# Layouts of the rails, the folder of a package, and words: tests whose name contains one of them; none:
# all its tests.
suites='one,wire,link-local crates/verbs
wire crates/transport rdma::link
one,link-local crates/transport rdma::link::tests::both_rails
one,wire,link-local . rdma::
link-local crates/perf gids
wire crates/perf rdma::'

main() {
    local option modes=() kernel=() seconds=600 scope=()
    while getopts k:m:t:p: option; do
        case $option in
        k) kernel=(-k "$OPTARG") ;;
        m) modes+=("$OPTARG") ;;
        t) seconds=$OPTARG ;;
        p) scope+=(-p "$OPTARG") ;;
        *) exit 64 ;;
        esac
    done
    shift $((OPTIND - 1))
    [ ${#modes[@]} != 0 ] || modes=(one wire link-local)
    [ ${#scope[@]} != 0 ] || scope=(--workspace)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    test_programs "${scope[@]}" >"$work/programs"
    list_tests "${1:-}"
    cat >"$work/guest.sh" <<GUEST
. $PWD/tests/vm/tests-guest.sh
export SPARK_CCL_TEST_RDMA=1
code=0
for RAILS in ${modes[*]}; do
    echo "=== rails: \$RAILS"
    rails make \$RAILS || exit
    run_tests $work/tests-\$RAILS --skip compile_fail --test-threads 1 || code=1
done
exit \$code
GUEST
    tests/vm/rdma.sh "${kernel[@]}" -m "${modes[0]}" -t "$seconds" \
        "${files[@]}" -- ". $work/guest.sh"
}

# Fills $work/tests-MODE for each, for run_tests, and `files`, for rdma.sh.
list_tests() {
    local name=$1 layouts package words mode todo target folder file
    files=(-a "$work/guest.sh" -a tests/vm/tests-guest.sh)
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
    for mode in "${modes[@]}"; do files+=(-a "$work/tests-$mode"); done
}

main "$@"
