#!/bin/bash
# Measures ways to use a TCP socket (peers/ways.c): over loopback, between two network namespaces
# that a virtual cable joins, and between two emulated machines of one processor. Needs root,
# Debian 12 for the machines, and liburing-dev.
#   benches/ways.sh [loopback|cable|machines]...
# ROUNDS (5), MEBIBYTES (4, that each run sends), PRIORITY (real-time, 50) and SECONDS_MOST (600,
# of the machines, which take minutes where nothing else runs) are variables.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
. benches/cable.sh

rounds=${ROUNDS:-5} mebibytes=${MEBIBYTES:-4} priority=${PRIORITY:-50} limit=${SECONDS_MOST:-600}
work=$(mktemp -d)
hosts=("spark-$$-a" "spark-$$-b")
other=

clean_up() {
    [ -z "$other" ] || kill "$other" 2>/dev/null || true
    for host in "${hosts[@]}"; do ip netns delete "$host" 2>/dev/null || true; done
    rm -rf "$work"
}
trap clean_up EXIT

# A ring may hand work to a thread of the kernel of ordinary priority, and waits for it when it is
# killed, so what runs is bounded.
bounded() { chrt -f "$priority" timeout -k 1 60 "$@"; }

# pair ADDRESS [COMMAND...]: both ends, each by the command with the host's name behind it.
pair() {
    local address=$1 first=() second=()
    shift
    [ $# = 0 ] || { first=("$@" "${hosts[0]}") second=("$@" "${hosts[1]}"); }
    bounded "${second[@]}" "$work/ways" dial "$address" 1 "$rounds" "$mebibytes" &
    other=$!
    bounded "${first[@]}" "$work/ways" listen "$address" 0 "$rounds" "$mebibytes"
    wait $other
    other=
}

machines() {
    need qemu-system-x86 busybox-static kmod cpio xz-utils zstd python3
    local kernel elf
    kernel=$(unpacked "$(newest_kernel linux-image-amd64)")
    elf=$(elf_kernel "$kernel")
    local number
    for number in 1 2; do
        base_system "$work/$number" /bin/busybox
        place_program "$work/$number" "$work/ways"
        place_modules "$work/$number" "$kernel" virtio_pci virtio_net
        cat >"$work/$number/guest.sh" <<GUEST
ip addr add 10.78.1.$number/24 dev eth0
ip link set eth0 up
# Counts for sockets that are told to.
echo 50 >/proc/sys/net/core/busy_poll
[ $number = 1 ] && way=listen || way=dial
$work/ways \$way 10.78.1.1 0 $rounds $mebibytes
GUEST
    done
    machine 2 1 >"$work/second" 2>&1 &
    other=$!
    machine 1 2 || { sed 's/^/second machine: /' "$work/second" && return 1; }
    kill $other 2>/dev/null || true
    wait $other || true
    other=
}

# machine NUMBER OTHER: sockets act as the cable.
machine() {
    local ends=local.type=unix,local.path=$work/$1-end,remote.type=unix,remote.path=$work/$2-end
    boot "$limit" "$work/$1" qemu-system-x86_64 -M pc -cpu max -accel tcg,thread=multi -smp 1 \
        -m 512 -kernel "$elf" -append "console=ttyS0 quiet panic=-1 no_timer_check" \
        -netdev "dgram,id=n,$ends" \
        -device "virtio-net-pci,netdev=n,romfile=,mac=52:54:00:00:00:0$1"
}

need liburing-dev gcc
gcc -D_GNU_SOURCE -O2 -Wall -Wextra -o "$work/ways" benches/peers/ways.c -luring
for place in "${@:-loopback}"; do
    echo "$place, load average before $(cut -d' ' -f1 /proc/loadavg)"
    case $place in
    loopback) pair 127.0.0.1 ;;
    cable) lay_cable "${hosts[@]}" && pair 10.78.0.1 ip netns exec ;;
    machines) machines ;;
    *) exit 64 ;;
    esac
done
