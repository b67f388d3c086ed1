#!/bin/bash
# Has `spark-perf netplan --apply` work with netplan itself, and fail in five ways: two machines of
# Ubuntu 24.04, with systemd and its daemon of the network, in namespaces of this one. Each fault
# has to leave both as they were. Debian 12, root. Ends with 77 where Ubuntu's packages cannot be
# had. SPARK_PERF names another program than the one that is built here.
#   tests/netplan.sh [FAULT]...
# shellcheck disable=SC2016
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
. tests/vm/ubuntu.sh

# What is on the disks of the machines, and the process that each of them is.
work=$(mktemp -d)
declare -A machine
plan=(netplan --topology direct --nodes 'node1,node2' --interfaces fast0+fast1)

clean_up() {
    # To systemd another signal is an order.
    kill -KILL "${machine[@]}" "${hub:-}" 2>/dev/null || true
    wait
    remove "$work"
}

# The layer of Ubuntu with what the machines run.
make_image() {
    image=$cache/noble.netplan
    [ ! -e "$image/complete" ] || return 0
    remove "$image"
    mkdir -p "$image"/{upper/etc,work,whole}
    cp /etc/resolv.conf /etc/hosts "$image/upper/etc/"
    unshare --mount bash -euc '
        mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay "$2/whole"
        mount -t proc proc "$2/whole/proc"
        export DEBIAN_FRONTEND=noninteractive
        chroot "$2/whole" apt-get update -qq -o APT::Update::Error-Mode=any
        chroot "$2/whole" apt-get install -y -qq --no-install-recommends \
            systemd-sysv dbus netplan.io iproute2 openssh-server >/dev/null
    ' _ "$root" "$image" || untried
    touch "$image/complete"
}

# make_disk NUMBER: the root folder of a machine that has never started.
make_disk() {
    local disk=$work/$1/upper
    mkdir -p "$work/$1"/{work,whole} "$disk"/{etc/netplan,etc/ssh,usr/local/bin,root/.ssh}
    install "$perf" "$disk/usr/local/bin/spark-perf"
    echo "node$1" >"$disk/etc/hostname"
    # The daemon makes hardware addresses of it.
    printf '%032d\n' "$1" >"$disk/etc/machine-id"
    printf '10.77.0.%s node%s\n' 1 1 2 2 >"$disk/etc/hosts"
    cp "$work/key" "$disk/root/.ssh/id_ed25519"
    cp "$work/key.pub" "$disk/root/.ssh/authorized_keys"
    echo 'StrictHostKeyChecking accept-new' >"$disk/root/.ssh/config"
    printf '%s\n' 'PermitRootLogin yes' 'UsePAM no' 'UseDNS no' >"$disk/etc/ssh/sshd_config"
    cat >"$disk/etc/netplan/01-lan.yaml" <<YAML
network:
  version: 2
  ethernets:
    lan:
      addresses: [10.77.0.$1/24]
YAML
    chmod 600 "$disk"/etc/netplan/* "$disk/root/.ssh/id_ed25519"
    chmod 700 "$disk/root/.ssh"
}

# start NUMBER: starts a machine from its disk, as after a power cut, and plugs in its cables.
start() {
    local number=$1 unshared network
    setpriv --pdeathsig KILL unshare --mount --pid --net --uts --ipc --cgroup --fork --kill-child \
        bash -euc '
        mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay "$2/whole"
        cd "$2/whole"
        mount -t proc proc proc
        mount -t sysfs sysfs sys
        mount -t cgroup2 none sys/fs/cgroup
        for folder in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs $folder; done
        for device in null zero full random urandom tty; do
            touch dev/$device
            mount --bind /dev/$device dev/$device
        done
        mkdir dev/pts dev/shm
        mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
        ln -s pts/ptmx dev/ptmx
        pivot_root . mnt
        umount -l mnt
        exec env -i container=namespaces PATH=/usr/sbin:/usr/bin /lib/systemd/systemd
    ' _ "$image/upper:$root" "$work/$number" >"$work/$number/log" 2>&1 </dev/null &
    unshared=$!
    until [ "$(cat "/proc/${machine[$number]:-none}/comm" 2>/dev/null)" = systemd ]; do
        sleep 0.1
        read -r machine[$number] <"/proc/$unshared/task/$unshared/children" || true
    done
    for network in lan fast0 fast1; do
        nsenter -n -t "$hub" ip link add "$network-$number" mtu 9000 type veth \
            peer name "$network" netns "${machine[$number]}"
        nsenter -n -t "$hub" ip link set "$network-$number" master "$network" up
    done
    # Where nothing else has been set, what no file mentions is what was set by hand.
    on "$number" '
        systemctl is-system-running --wait || true
        systemctl start ssh
        netplan apply
        until ip -br address show lan | grep -q 10.77; do sleep 0.1; done
        [ -e /etc/netplan/90-spark-ccl.yaml ] || {
            ip address add 10.7.0.'"$number"'/24 dev fast0
            ip link set fast0 mtu 2000 up
            ip route add 10.8.0.0/16 via 10.7.0.9 dev fast0
        }' >>"$work/$number/log" 2>&1
}

# power_cut NUMBER: what is below /etc is left, and nothing else.
power_cut() {
    local unshared
    unshared=$(awk '$1 == "PPid:" {print $2}' "/proc/${machine[$1]}/status")
    kill -KILL "${machine[$1]}"
    wait "$unshared" 2>/dev/null || true
}

# on NUMBER SCRIPT: a shell command on a machine.
on() {
    nsenter --all --target "${machine[$1]}" env -i HOME=/root TERM=dumb \
        PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c "$2"
}

# The interfaces, routes and files that a trial may change.
state() {
    on "$1" 'for name in lan fast0 fast1; do
            ip -o link show $name | sed "s/.*<\(.*\)> \(mtu [0-9]*\).*/$name \2 \1/"
            ip -o -4 address show $name | awk "{print \$4}"
            ip -4 route show dev $name
        done | sed "s/,LOWER_UP\|NO-CARRIER,\| linkdown//g"
        ls /etc/netplan/* /run/netplan/* /run/spark-ccl-netplan/trial; true' 2>/dev/null
}

# until_state NUMBER: waits until it is as it was before the fault.
until_state() {
    local deadline=$((SECONDS + 90))
    until [ "$(state "$1")" = "${before[$1]}" ]; do
        if [ $SECONDS -gt $deadline ]; then
            echo "node$1 is not what it was:" >&2
            diff <(echo "${before[$1]}") <(state "$1") >&2
            on "$1" 'cat /run/spark-ccl-netplan/log; journalctl -n 30' >&2
            exit 1
        fi
        sleep 0.2
    done
}

# wait_on NUMBER SCRIPT: until the command succeeds there.
wait_on() {
    local deadline=$((SECONDS + 90))
    until on "$1" "$2"; do
        [ $SECONDS -le $deadline ] || { echo "node$1: never: $2" >&2; exit 1; }
        sleep 0.05
    done
}

# apply FLAG...: from the first machine, asking a terminal on which nobody answers; in the
# background, as `applying`.
apply() {
    on 1 "[ -e /tmp/silent ] || mkfifo /tmp/silent
        script -qec 'spark-perf ${plan[*]} --apply $*' /dev/null <>/tmp/silent" >"$work/said" 2>&1 &
    applying=$!
}

# Waits until the plan is in effect on both, and the user is asked.
asked() {
    until grep -q 'Keep it' "$work/said"; do
        kill -0 "$applying" 2>/dev/null || { cat "$work/said" >&2; exit 1; }
        sleep 0.1
    done
}

# must WORDS: what the command said has them.
must() {
    grep -q -- "$1" "$work/said" || { cat "$work/said" >&2; echo "without: $1" >&2; exit 1; }
}

lost_ssh() {
    apply --confirm-within 12
    asked
    # The second machine is no longer reached, and the command is gone.
    nsenter -n -t "$hub" ip link set lan-2 down
    on 1 'pkill -KILL -o -x spark-perf'
    until_state 2
    until_state 1
    nsenter -n -t "$hub" ip link set lan-2 up
}

killed_agent() {
    apply --yes --confirm-within 12
    wait_on 2 'pkill -KILL -f "[n]etplan-agent try"'
    wait $applying && exit 1
    must 'rolling back'
    until_state 1
    until_state 2
}

cut_power() {
    apply --confirm-within 12
    asked
    power_cut 2
    start 2
    until_state 2
    until_state 1
}

one_of_two() {
    # Nothing can be renamed to what is mounted.
    on 2 'cd /etc/netplan; echo "# older" >90-spark-ccl.yaml; chmod 600 *
        mount --bind 90-spark-ccl.yaml 90-spark-ccl.yaml'
    before[2]=$(state 2)
    on 1 "spark-perf ${plan[*]} --apply --yes" >"$work/said" 2>&1 && exit 1
    must 'node2: .*Device or resource busy'
    until_state 1
    until_state 2
    on 2 'cd /etc/netplan; umount 90-spark-ccl.yaml; rm 90-spark-ccl.yaml'
}

# What nobody restores but the trial.
no_file_mentions_it() {
    on 1 "spark-perf ${plan[*]} --apply" >"$work/said" 2>&1 </dev/null && exit 1
    must 'nobody to ask'
    for number in 1 2; do
        until_state $number
        on $number 'ip -4 route show dev fast0' | grep -q 10.8.0.0/16
    done
}

works() {
    on 1 "spark-perf ${plan[*]} --apply --yes" >"$work/said" 2>&1 || { cat "$work/said"; exit 1; }
    power_cut 2
    start 2
    on_both 'ip -br address show fast1 | grep -q 192.168.101'
    on_both 'test "$(cat /sys/class/net/fast1/mtu)" = 9000'
    on_both 'test "$(ls /etc/netplan)" = "$(printf "01-lan.yaml\n90-spark-ccl.yaml")"'
}

on_both() {
    wait_on 1 "$1"
    wait_on 2 "$1"
}

need debootstrap gpg gpgv openssh-client iproute2
ubuntu_root
trap clean_up EXIT
make_image
perf=$(spark_perf)
ssh-keygen -q -t ed25519 -N '' -f "$work/key"
unshare --net sleep infinity &
hub=$!
until [ "$(readlink /proc/$hub/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
for network in lan fast0 fast1; do
    nsenter -n -t $hub ip link add $network mtu 9000 type bridge
    nsenter -n -t $hub ip link set $network up
done
for number in 1 2; do
    make_disk $number
    start $number
done
declare -A before
# shellcheck disable=SC2048
for fault in ${*:-no_file_mentions_it lost_ssh killed_agent cut_power one_of_two works}; do
    for number in 1 2; do before[$number]=$(state $number); done
    $fault
    echo "$fault: passed"
done
