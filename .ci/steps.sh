# Sourced by the scripts of this folder: runs steps one after another, or in the background.

# The output of each step, and of each function that `beside` has started; in `times` a line for
# each step that has ended, its seconds and its name; in `failures` what failed steps said.
output=$(mktemp -d)
times=$output/times
failures=$output/failures
touch "$failures"
# The process group of each function that `beside` has started.
declare -A groups
trap at_end EXIT

# step NAME COMMAND... Within a function that is called so, `set -e` has no effect.
step() {
    local code=0 name=$1 start=$SECONDS log shown pipe
    log=$(mktemp -p "$output")
    printf '\n=== %s (%s s)\n' "$name" "$SECONDS"
    shift
    exec {pipe}> >(tee "$log")
    shown=$!
    "$@" >&$pipe 2>&1 {pipe}>&- || code=$?
    exec {pipe}>&-
    # A process that the step has left may hold the pipe for ever.
    timeout 5 tail -s 0.1 -f --pid=$shown /dev/null || true
    [ $code = 0 ] || {
        printf '\n=== FAILED with %s: %s (%s s)\n' $code "$name" "$SECONDS"
        reasons "$log"
    } >>"$failures"
    rm "$log"
    printf '%6d s  %s\n' $((SECONDS - start)) "$name" >>"$times"
    return $code
}

# reasons LOG: of the output of a failed step, the names and panics of tests, and the last lines.
reasons() {
    awk '/^---- .* stdout ----$/ || /^test .* FAILED$/ || /^(FAIL|ERROR|FAILED|error)\>/ { print }
        /panicked at/ { lines = 4 }
        lines-- > 0' "$1" | tail -n 60
    echo "..."
    tail -n 20 "$1"
}

# part PART NAME COMMAND...: a step, if the list `parts` has its part.
part() {
    [[ " $parts " != *" $1 "* ]] || step "${@:2}"
}

# beside FUNCTION: starts it in the background. It gets the processor time that other steps leave.
beside() {
    # With job control, a process in the background leads a group.
    set -m
    (
        renice -n 19 -p "$BASHPID" >/dev/null
        "$1"
    ) </dev/null >"$output/$1" 2>&1 &
    set +m
    groups[$1]=$!
}

# finish FUNCTION: waits for it, shows its output, and returns its exit status.
finish() {
    local code=0 start=$SECONDS
    wait "${groups[$1]}" || code=$?
    unset "groups[$1]"
    cat "$output/$1"
    printf '%6d s  waiting for: %s\n' $((SECONDS - start)) "$1" >>"$times"
    return "$code"
}

# all_passed: prints the seconds of each step. Steps in the background slowed down the others.
all_passed() {
    printf '\n=== All passed (%s s)\n' "$SECONDS"
    cat "$times"
}

# Shows what steps in the background have printed so far, and last why steps failed.
at_end() {
    local group
    for group in "${groups[@]}"; do kill -- "-$group" || true; done
    for group in "${!groups[@]}"; do tail -n 1000 "$output/$group"; done
    cat "$failures"
    rm -rf "$output"
}
