#!/bin/bash
# Two ranks in two network namespaces, over TCP through a veth pair that loses packets.
#   tests/vm/netem.sh    (LOSS=5% tests/vm/netem.sh for another rate)
# Needs Debian. The machine is emulated, since many hosts have no kernel module for the loss.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/vm/lib.sh

main() {
    local kernel perf
    need qemu-system-x86 busybox-static iproute2 kmod cpio
    perf=$(spark_perf)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    kernel=$(unpacked "$(newest_kernel linux-image-cloud-amd64)")
    make_guest "$work/root" "$kernel" "$perf"
    boot "${VM_SECONDS:-300}" "$work/root" qemu-system-x86_64 -M pc -cpu max \
        -accel tcg,thread=multi -smp 2 -m 1024 -nic none \
        -append "console=ttyS0 quiet panic=-1 mitigations=off loss=${LOSS:-1%}" \
        -kernel "$(echo "$kernel"/boot/vmlinuz-*)"
}

make_guest() {
    local root=$1 kernel=$2 perf=$3 file
    base_system "$root" /bin/busybox
    mkdir -p "$root"/{tools,usr/bin}
    # busybox knows neither namespaces nor queueing disciplines.
    for file in "$(command -v ip)" "$(command -v tc)"; do
        place_program "$root" "$file"
        ln -s "$file" "$root/tools/"
    done
    place_program "$root" "$perf"
    ln -s "$perf" "$root/usr/bin/spark-perf"
    place_modules "$root" "$kernel" veth sch_netem
    cp tests/vm/netem-guest.sh "$root/guest.sh"
}

main "$@"
