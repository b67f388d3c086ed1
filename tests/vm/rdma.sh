#!/bin/bash
# Runs a shell command in an emulated machine with two rails of soft-RoCE: real queue pairs, real
# completions and real faults. Returns what the command returned, or 124 when it took too long.
#   tests/vm/rdma.sh [-m one|wire|link-local] [-k 6.12] [-t SECONDS] [-a FILE]... [-- COMMAND]
#   -m  how the rails are laid out: see rails.sh, which is the command `rails` there
#   -k  another version of the kernel than Debian's default
#   -a  a program, with its libraries, or another file; there it has its own path, and the programs
#       are commands
# Without a command it tries perftest and ibv_rc_pingpong on both rails. There, `pair` runs such a
# program on two devices. Needs Debian 12.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/vm/lib.sh

mode=one meta=linux-image-amd64 seconds=120 files=()

main() {
    local option kernel command
    while getopts m:k:t:a: option; do
        case $option in
        m) mode=$OPTARG ;;
        k) meta=linux-image-$OPTARG-amd64 ;;
        t) seconds=$OPTARG ;;
        a) files+=("$(realpath "$OPTARG")") ;;
        *) exit 64 ;;
        esac
    done
    shift $((OPTIND - 1))
    command=${*:-$(cat tests/vm/rdma-check.sh)}
    need qemu-system-x86 busybox-static dash iproute2 kmod cpio xz-utils zstd python3 \
        ibverbs-utils ibverbs-providers perftest
    kernel=$(newest_kernel "$meta")
    kernel=$(unpacked "$kernel")
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    make_guest "$work/root" "$kernel"
    printf 'ulimit -l unlimited\nexport RAILS=%s\nrails make $RAILS || exit\n%s\n' \
        "$mode" "$command" >"$work/root/guest.sh"
    # Several processors would be emulated by few, and pollers would delay each other.
    boot "$seconds" "$work/root" qemu-system-x86_64 -M pc -cpu max -accel tcg,thread=multi -smp 1 \
        -m 1024 -nic none -kernel "$(elf_kernel "$kernel")" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off cryptomgr.notests"
}

make_guest() {
    local root=$1 kernel=$2 file
    soft_roce_system "$root" "$kernel" veth
    for file in ibv_devinfo ibv_rc_pingpong ib_write_bw ib_write_lat ib_send_bw ib_read_bw; do
        place_program "$root" "$(command -v $file)"
    done
    install -D tests/vm/rails.sh "$root/usr/bin/rails"
    install tests/vm/pair.sh "$root/usr/bin/pair"
    for file in "${files[@]}"; do
        place_program "$root" "$file"
        [ -x "$file" ] || continue
        ln -sf "$file" "$root/usr/bin/"
        # Nine tenths of a program are for debuggers.
        strip --strip-debug "$root$file" 2>/dev/null || true
    done
}

main "$@"
