#!/bin/bash
# The long checks, on a release build: every collective, type and operation over shared memory and
# TCP, the launchers, and ranks killed in the middle of a large all_reduce.
#   tests/acceptance.sh [matrix|launchers|kill]...      (default: all; over an hour on two cores)
set -euo pipefail
cd "$(dirname "$0")/.."

. tests/vm/lib.sh
perf=$(spark_perf)
collectives=(all_reduce all_gather reduce_scatter broadcast reduce gather scatter alltoall alltoallv
    sendrecv hypercube)
# Without warm-up, which checks nothing, and would take a third of the time.
sweep=(-b 8 -e 4M -f 8 -n 2 -w 0 -d all -o all)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    printf 'FAILED: %s\n' "$1"
    [ ! -f "$work/log" ] || tail -n 30 "$work/log"
    exit 1
}

# Runs a command that must succeed and find no wrong value.
clean() {
    timeout 600 "$@" >"$work/log" 2>&1 || fail "$* (exit code $?)"
    grep -q '^# Out of bounds values : 0 OK' "$work/log" || fail "$*: wrong values"
}

matrix() {
    local shm procs collective
    for shm in 1 0; do
        for procs in 2 3 5 8; do
            for collective in "${collectives[@]}"; do
                [ "$collective" != hypercube ] || [ $procs = 2 ] || [ $procs = 8 ] || continue
                clean env SPARK_CCL_SHM=$shm "$perf" "$collective" --procs $procs \
                    "${sweep[@]}"
            done
            echo "matrix: shm $shm, $procs processes: every value right"
        done
    done
}

launchers() {
    local collective rank
    for collective in all_reduce alltoall; do
        clean mpirun.openmpi --allow-run-as-root --oversubscribe -n 3 "$perf" $collective "${sweep[@]}"
        clean mpiexec.mpich -n 3 "$perf" $collective "${sweep[@]}"
        for rank in 2 1; do
            RANK=$rank WORLD_SIZE=3 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=29417 \
                timeout 600 "$perf" $collective "${sweep[@]}" >"$work/rank$rank" 2>&1 &
        done
        clean env RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29417 \
            "$perf" $collective "${sweep[@]}"
        wait
        echo "launchers: $collective under Open MPI, MPICH and torchrun's variables: every value right"
    done
}

# Kills rank $2 of three in the middle of an all_reduce of 1 GiB. Fails if the others name it later
# than within 2 s.
kill_once() {
    local shm=$1 victim=$2 port=$3 rank start elapsed pids=()
    for rank in 0 1 2; do
        SPARK_CCL_SHM=$shm RANK=$rank WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            timeout 120 "$perf" all_reduce -b 1G -e 1G -n 2 -N 0 -c 0 >"$work/rank$rank" 2>&1 &
        pids[rank]=$!
    done
    # After the first row there is nothing but all_reduce.
    for _ in $(seq 600); do
        ! grep -q '^  *1073741824' "$work/rank0" || break
        sleep 0.1
    done
    sleep "0.$((RANDOM % 9 + 1))"
    # `timeout` is the child here; its child is the rank.
    pkill -KILL -P "${pids[victim]}" || fail "rank $victim had ended before it was killed"
    start=$(date +%s%N)
    for rank in 0 1 2; do
        [ $rank = "$victim" ] && continue
        until grep -q "rank $victim .*died" "$work/rank$rank"; do
            elapsed=$((($(date +%s%N) - start) / 1000000))
            [ $elapsed -lt 60000 ] || {
                cp "$work/rank$rank" "$work/log"
                fail "rank $rank does not say within a minute that rank $victim died"
            }
            sleep 0.05
        done
    done
    elapsed=$((($(date +%s%N) - start) / 1000000))
    for rank in 0 1 2; do
        ! wait "${pids[rank]}" || fail "rank $rank succeeded without rank $victim"
    done
    echo "kill: shm $shm, rank $victim: both survivors named it within $elapsed ms"
    [ $elapsed -lt 2000 ]
}

# A busy machine is late by chance, a few times in all: then there is another attempt.
late=0
kill_promptly() {
    until kill_once "$@"; do
        late=$((late + 1))
        echo "kill: that was late, $late of at most 4 times"
        [ $late -le 4 ] || fail "$late attempts were late"
    done
}

kill_ranks() {
    local before shm try
    before=$(ls /dev/shm)
    for shm in 1 0; do
        for try in $(seq ${TRIES:-20}); do
            kill_promptly $shm $((try % 3)) $((29500 + try))
        done
    done
    [ "$(ls /dev/shm)" = "$before" ] || fail "something was left in /dev/shm"
    ! pgrep -x spark-perf >/dev/null || fail "a process was left behind"
    echo "kill: $late attempts were late"
}

for part in "${@:-matrix launchers kill}"; do
    for name in $part; do
        case $name in
        matrix | launchers) $name ;;
        kill) kill_ranks ;;
        *) fail "unknown part $name" ;;
        esac
    done
done
echo "All passed ($SECONDS s)"
