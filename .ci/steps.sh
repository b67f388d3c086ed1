# Sourced by the scripts of this folder: runs steps one after another, or in the background.

# A line for each step that has ended: its seconds, and its name.
times=$(mktemp)
# The process group of each function that `beside` has started, and its output's folder.
declare -A groups
output=$(mktemp -d)
trap end_groups EXIT

# step NAME COMMAND... Within a function that is called so, `set -e` has no effect.
step() {
    local code=0 name=$1 start=$SECONDS
    printf '\n=== %s (%s s)\n' "$name" "$SECONDS"
    shift
    "$@" || code=$?
    [ $code = 0 ] || printf '\n=== FAILED with %s: %s (%s s)\n' $code "$name" "$SECONDS"
    printf '%6d s  %s\n' $((SECONDS - start)) "$name" >>"$times"
    return $code
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

end_groups() {
    local group
    for group in "${groups[@]}"; do kill -- "-$group" || true; done
    # The output of steps that had not ended, long enough for that of a test that failed.
    for group in "${!groups[@]}"; do tail -n 1000 "$output/$group"; done
    rm -rf "$output" "$times"
}
