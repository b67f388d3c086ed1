#!/bin/bash
# Tests what spark-perf finds and measures on two hosts over RDMA: two emulated machines, each with
# an ssh server, joined by a local network and by two rails of soft-RoCE. The two ends of a queue
# pair are in different kernels. Needs Debian 12.
#   tests/vm/two-hosts.sh [-k 6.12] [-t SECONDS]
#   -k  another version of the kernel than Debian's default
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/vm/lib.sh

meta=linux-image-amd64 seconds=300 other=

main() {
    local option perf
    while getopts k:t: option; do
        case $option in
        k) meta=linux-image-$OPTARG-amd64 ;;
        t) seconds=$OPTARG ;;
        *) exit 64 ;;
        esac
    done
    need qemu-system-x86 busybox-static dash iproute2 kmod cpio xz-utils zstd python3 ibverbs-providers \
        openssh-server openssh-client
    perf=$(spark_perf)
    kernel=$(newest_kernel "$meta")
    kernel=$(unpacked "$kernel")
    # Made once, for both machines.
    elf=$(elf_kernel "$kernel")
    work=$(mktemp -d)
    trap clean_up EXIT
    make_host "$work/1" "$perf"
    cp -a "$work/1" "$work/2"
    boot_hosts || {
        # A cable of the emulator may die, and with it the measurement.
        [ $? = 75 ] || exit 1
        echo "an emulated cable carries nothing: once more"
        boot_hosts || exit 1
    }
}

boot_hosts() {
    local code=0
    boot_host 2 1 >"$work/second" 2>&1 &
    other=$!
    boot_host 1 2 || code=$?
    [ $code = 0 ] || sed 's/^/second host: /' "$work/second"
    kill "$other" 2>/dev/null || true
    wait "$other" || true
    other=
    return $code
}

# The second machine ends with the process that waits for it.
clean_up() {
    [ -z "$other" ] || kill "$other" 2>/dev/null || true
    rm -rf "$work"
}

make_host() {
    local root=$1 perf=$2 key=$1/root/.ssh/id_ed25519
    soft_roce_system "$root" "$kernel" virtio_pci virtio_net
    place_program "$root" /usr/sbin/sshd /usr/bin/ssh "$perf"
    ln -s "$perf" "$root/usr/bin/spark-perf"
    strip --strip-debug "$root$perf"
    mkdir -p "$root/etc/ssh" "$root/root/.ssh" "$root/run/sshd"
    printf '%s\n' 'root:*:0:0:root:/root:/bin/sh' 'sshd:*:100:65534::/run/sshd:/bin/false' >"$root/etc/passwd"
    printf '10.0.9.%s node%s\n' 1 1 2 2 >>"$root/etc/hosts"
    # Servers and clients have one key.
    ssh-keygen -q -t ed25519 -N '' -f "$key"
    cp "$key.pub" "$root/root/.ssh/authorized_keys"
    echo "node1,node2 $(cat "$key.pub")" >"$root/root/.ssh/known_hosts"
    printf '%s\n' 'HostKey /root/.ssh/id_ed25519' 'StrictModes no' 'UseDNS no' >"$root/etc/ssh/sshd_config"
    # All sessions use one connection: here, the cryptography of another one takes seconds.
    printf '%s\n' 'ControlMaster auto' 'ControlPath /run/ssh-%n' 'ControlPersist yes' >"$root/root/.ssh/config"
    cp tests/vm/two-hosts-guest.sh "$root/usr/bin/two-hosts"
}

# boot_host NUMBER OTHER: boots a machine with three networks to the other one; sockets act as
# cables. As on a Spark, the local network is slower than the rails.
boot_host() {
    local number=$1 other=$2 network speed networks=()
    echo "NUMBER=$number; . /usr/bin/two-hosts" >"$work/$number/guest.sh"
    for network in 0 1 2; do
        [ $network = 0 ] && speed=1000 || speed=200000
        networks+=(-netdev "dgram,id=n$network,local.type=unix,local.path=$work/$number-$network,remote.type=unix,remote.path=$work/$other-$network"
            -device "virtio-net-pci,netdev=n$network,romfile=,host_mtu=9000,speed=$speed,duplex=full,mac=52:54:00:00:0$network:0$number")
    done
    # With less memory, doctor warns.
    boot "$seconds" "$work/$number" qemu-system-x86_64 -M pc -cpu max -accel tcg,thread=multi -smp 1 -m 3072 \
        -kernel "$elf" "${networks[@]}" -append "console=ttyS0 quiet panic=-1 mitigations=off cryptomgr.notests"
}

main "$@"
