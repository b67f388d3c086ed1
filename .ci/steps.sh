# Sourced by the scripts of this folder, and of tests: runs steps one after another, or in the
# background.

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
    # What a step prints while a signal ends it, too: without a reader it would end at once.
    exec {pipe}> >(trap '' INT TERM && exec tee "$log")
    shown=$!
    "$@" >&$pipe 2>&1 {pipe}>&- || code=$?
    exec {pipe}>&-
    # A process that the step has left may hold the pipe for ever.
    timeout 5 tail -s 0.1 -f --pid=$shown /dev/null ||
        printf '\n=== Has left a process behind, which took 5 s: %s\n' "$name"
    if [ $code != 0 ]; then
        printf '\n=== FAILED with %s: %s (%s s)\n' $code "$name" "$SECONDS" | tee -a "$failures"
        reasons "$log" >>"$failures"
    fi
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

# beside FUNCTION: starts it in the background.
beside() {
    : >"$output/$1"
    # With job control, a process in the background leads a group.
    set -m
    ("$1") </dev/null >"$output/$1" 2>&1 &
    set +m
    groups[$1]=$!
}

# give_way: what `beside` has started, and calls this, gets the processor time that other steps
# leave. That may be too little for steps with limits of time.
give_way() {
    renice -n 19 -p "$BASHPID" >/dev/null
}

# finish FUNCTION: waits for it, shows its output, and returns its exit status.
finish() {
    local code=0 start=$SECONDS
    wait "${groups[$1]}" || code=$?
    # What a step has left behind when it failed.
    [ $code = 0 ] || kill -- "-${groups[$1]}" 2>/dev/null || true
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
    # Whatever fails here, the rest follows.
    set +e
    # Tests stop processes, which end only once they go on.
    for group in "${groups[@]}"; do kill -- "-$group" && kill -CONT -- "-$group"; done 2>/dev/null
    for group in "${groups[@]}"; do await "$group"; done
    for group in "${!groups[@]}"; do tail -n 1000 "$output/$group"; done
    cat "$failures"
    rm -rf "$output"
}

# await GROUP: waits, at most 5 s, until the processes of a group have cleaned up.
await() {
    local try
    for try in {1..50}; do
        kill -0 -- "-$1" 2>/dev/null || return 0
        sleep 0.1
    done
    echo "5 s after they were told to end, there are still processes of group $1" >&2
}
