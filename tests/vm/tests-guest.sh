# Runs in emulated machines: programs of tests, one after another.

# run_tests LIST ARGUMENT...: runs programs with the arguments. LIST has a line "name folder program
# argument..." for each. A program without a matching test passes, but not a whole list of these.
run_tests() {
    list=$1
    shift
    failed=0 passed=
    export SPARK_CCL_TEST_SKIPPED=/tmp/skipped
    rm -f $SPARK_CCL_TEST_SKIPPED
    while read -r name folder program own; do
        mkdir -p "$folder"
        cd "$folder"
        begin=$(cut -d. -f1 /proc/uptime)
        # shellcheck disable=SC2086
        if timeout 900 "$program" $own "$@" >/tmp/output 2>&1 </dev/null; then
            summary=$(grep '^test result' /tmp/output)
            grep '^cases ' /tmp/output || true
            case $summary in *'ok. 0 passed'*) ;; *) passed=some ;; esac
        else
            summary="FAILED with $?"
            failed=1
            cat /tmp/output
        fi
        echo "$name: $summary, $(($(cut -d. -f1 /proc/uptime) - begin)) s with the start"
    done <"$list"
    [ ! -e $SPARK_CCL_TEST_SKIPPED ] || sort -u $SPARK_CCL_TEST_SKIPPED | sed 's/^/skipped for lack of /'
    [ $failed = 0 ] && [ -n "$passed" ]
}
