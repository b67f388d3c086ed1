#!/bin/bash
# Real launchers start spark-perf, whose ranks must meet and find every value right.
#   tests/launchers.sh [slurm|torchrun|launch]...      (default: slurm)
#   slurm     Debian's packages, with this machine as the only node: pmi2, pmix, and neither
#   torchrun  PyTorch from PyPI (5.4 GB with its libraries, kept in $XDG_CACHE_HOME/spark-ccl):
#             static and c10d
#   launch    the same PyTorch, in a program that `spark-perf launch` starts on four network
#             namespaces
# Needs root for Slurm's daemons, which write to a folder of their own. `SPARK_PERF` names another
# program.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh

ranks=4
work=$(mktemp -d)
daemons=()
trap stop EXIT

main() {
    local part
    [ $# != 0 ] || set -- slurm
    perf=$(spark_perf)
    for part in "$@"; do
        case $part in
        slurm | torchrun | launch) $part ;;
        *) echo "unknown part $part" >&2 && exit 64 ;;
        esac
    done
}

stop() {
    local daemon
    # Slurm's daemons need munge's to the end.
    for ((daemon = ${#daemons[@]} - 1; daemon >= 0; daemon--)); do
        kill "${daemons[daemon]}" 2>/dev/null || true
        wait "${daemons[daemon]}" || true
    done
    rm -rf "$work"
}

fail() {
    echo "FAILED: $1"
    tail -n 30 "$work"/*.log
    exit 1
}

# starts NAME COMMAND...: COMMAND ends with the program that every launcher starts.
starts() {
    local name=$1
    shift
    SPARK_CCL_SECRET=of-this-test-only timeout 120 "$@" "$perf" all_reduce -b 8 -e 1M -f 8 -n 2 \
        >"$work/run.log" 2>&1 || fail "$name (exit code $?)"
    grep -q '^# Out of bounds values : 0 OK' "$work/run.log" || fail "$name: wrong values"
    [ "$(grep -c '^#  Rank ' "$work/run.log")" = $ranks ] || fail "$name: not $ranks ranks"
    echo "$name: $ranks ranks, every value right"
}

slurm() {
    # Debian's plugin for pmix opens libpmix.so, which only the last package has.
    need slurmctld slurmd slurm-client munge python3 libpmix-dev
    export SLURM_CONF=$work/slurm.conf
    local ports mpi
    # Not the variables of a Slurm that runs this script.
    ports=($(python3 -c '
import socket
held = [socket.create_server(("", 0)) for _ in range(2)]
print(*(one.getsockname()[1] for one in held))'))
    mkdir "$work"/{munge,state,spool}
    chmod 755 "$work" "$work/munge"
    (umask 077 && head -c 1024 /dev/urandom >"$work/munge/key")
    cat >"$SLURM_CONF" <<CONF
ClusterName=one
SlurmctldHost=$(hostname -s)
SlurmUser=root
SlurmctldPort=${ports[0]}
SlurmdPort=${ports[1]}
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$ranks State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
    daemon munged --foreground --force --num-threads 2 --key-file "$work/munge/key" --socket "$work/munge/socket" \
        --pid-file "$work/munge/pid" --seed-file "$work/munge/seed" --log-file "$work/munge/log"
    timeout 30 bash -c "until [ -S '$work/munge/socket' ]; do sleep 0.1; done" || fail "munged does not start"
    daemon slurmctld -D
    daemon slurmd -D
    timeout 60 bash -c 'until [ "$(sinfo -h -o %T 2>/dev/null)" = idle ]; do sleep 0.3; done' || fail "no node is idle"
    for mpi in pmi2 pmix none; do
        starts "Slurm, --mpi=$mpi" srun -n $ranks --mpi=$mpi
    done
    timeout 60 bash -c 'while [ -n "$(squeue -h)" ]; do sleep 0.3; done' || fail "a job does not end"
}

# daemon NAME ARGUMENT...: starts it, until the script ends.
daemon() {
    setpriv --pdeathsig TERM "$@" >"$work/$1.log" 2>&1 &
    daemons+=($!)
}

torchrun() {
    local start
    pytorch || return 0
    start=("$torch/bin/torchrun" --nnodes 1 --nproc-per-node $ranks --no-python)
    starts "torchrun, static" "${start[@]}" --rdzv-backend static --master-addr 127.0.0.1 --master-port 29417
    starts "torchrun, c10d" "${start[@]}" --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29418
}

launch() {
    pytorch || return 0
    need openssh-client openssh-server iproute2
    SPARK_CCL_TEST_TORCH=$torch/bin/python SPARK_CCL_TEST_REQUIRE=namespaces,sshd,torch \
        cargo test --workspace --test cli -- launch::pytorch
}

# Installs PyTorch in the folder $torch. Returns 1 if it cannot be fetched; exits if
# SPARK_CCL_TEST_REQUIRE names torch.
pytorch() {
    torch=$(dirname "$cache")/torch
    [ ! -e "$torch/bin/torchrun" ] || return 0
    # Within a condition, `set -e` has no effect.
    need python3-venv || exit
    /usr/bin/python3 -m venv "$torch" || exit
    "$torch/bin/pip" install -q torch && return
    echo "SKIPPED: PyTorch is not here, and could not be fetched" >&2
    case ,${SPARK_CCL_TEST_REQUIRE:-}, in *,torch,*) exit 1 ;; esac
    return 1
}

main "$@"
