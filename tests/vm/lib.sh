# Shared by the scripts of this folder: packages, kernels, initial file systems, emulated machines.
# Sourced by bash scripts that run under `set -euo pipefail`. Needs Debian, or a system with apt.

cache=${XDG_CACHE_HOME:-$HOME/.cache}/spark-ccl/vm
mkdir -p "$cache"

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# need PACKAGE...: installs those that are missing.
need() {
    local package missing=()
    for package in "$@"; do
        # Debian lists a package of the machine's own architecture without the architecture.
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
            missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    echo "installing ${missing[*]}"
    with_apt as_root apt-get update -qq &&
        with_apt as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# with_apt COMMAND...: runs a command of apt while no other script does: both would fail.
with_apt() {
    local lock code=0
    exec {lock}>"$cache/apt.lock"
    flock "$lock"
    # Not passed on to services that are installed, and started.
    "$@" {lock}>&- || code=$?
    exec {lock}>&-
    return $code
}

# unpacked PACKAGE: prints a folder with the package's files, without installing it.
unpacked() {
    local package=${1:?"no package"} folder=$cache/$1
    if [ ! -e "$folder/.complete" ]; then
        # Within a command substitution, an error would not end the script.
        unpack "$package" "$folder" || return
    fi
    echo "$folder"
}

unpack() (
    rm -rf "$2" && mkdir -p "$2" && cd "$2" &&
        # The downloader runs as another user if it can.
        with_apt apt-get download -qq -o APT::Sandbox::User=root "$1" >&2 &&
        dpkg-deb -x ./*.deb . && rm ./*.deb && touch .complete
)

# newest_kernel META-PACKAGE: prints the package of the kernel that a meta package depends on.
newest_kernel() {
    local package
    # While another script brings apt's lists up to date, they may be empty.
    package=$(with_apt apt-cache depends "$1" 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
    if [ -z "$package" ]; then
        echo "apt knows no kernel as $1: is its package list of today, and has it that version?" >&2
        return 1
    fi
    echo "$package"
}

# elf_kernel KERNEL: prints the kernel's ELF file, which qemu starts 7 s sooner than the compressed
# one that Debian packs, since nothing has to be unpacked by emulated instructions.
elf_kernel() {
    local elf=$1/vmlinux
    if [ ! -e "$elf" ]; then
        python3 tests/vm/elf-kernel.py "$1"/boot/vmlinuz-* >"$elf.new"
        mv "$elf.new" "$elf"
    fi
    echo "$elf"
}

# place_modules ROOT KERNEL MODULE...: modules of an unpacked kernel, and what they need;
# base_system loads them.
place_modules() {
    local root=$1 kernel=$2 release file name
    shift 2
    release=$(ls "$kernel/lib/modules")
    [ -e "$kernel/lib/modules/$release/modules.dep" ] || depmod -b "$kernel" "$release"
    modprobe -d "$kernel" -S "$release" --show-depends -a "$@" |
        awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r file; do
        name=$(basename "${file%.xz}")
        case $file in
        *.xz) xz -dc "$file" >"$root/$name" ;;
        *) cp "$file" "$root/$name" ;;
        esac
        echo "/$name" >>"$root/modules"
    done
}

# place ROOT FILE...: copies files into ROOT under their own absolute paths.
place() {
    local root=$1 file
    shift
    for file in "$@"; do
        mkdir -p "$root$(dirname "$file")"
        cp -L "$file" "$root$file"
    done
}

# place_program ROOT FILE...: the same, with the libraries that the host's loader finds for them.
place_program() {
    local root=$1 program library
    shift
    place "$root" "$@"
    for program in "$@"; do
        # Static programs have no libraries; ldd fails for them.
        { ldd "$program" 2>/dev/null || true; } | sed -n 's/^[^/]*\(\/[^ ]*\) .*/\1/p' |
            while read -r library; do
            [ -e "$root$library" ] || place "$root" "$library"
        done
    done
}

# test_programs ARGUMENT...: builds what `cargo test` would with these arguments, and prints the
# lines of `programs`.
test_programs() {
    programs test --no-run "$@"
}

# programs COMMAND ARGUMENT...: a command of cargo that builds programs. Prints a line
# "run|keep <tab> name <tab> package folder <tab> file" for each, `run` for those that are tests.
programs() {
    cargo "$1" --message-format json-render-diagnostics "${@:2}" | python3 -c '
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        todo = "run" if message["profile"]["test"] else "keep"
        folder = os.path.dirname(message["manifest_path"])
        print(todo, message["target"]["name"], folder, message["executable"], sep="\t")'
}

# spark_perf: prints the program that SPARK_PERF names, or builds it, optimised.
spark_perf() {
    [ -n "${SPARK_PERF:-}" ] || cargo build --release --bin spark-perf || return
    realpath "${SPARK_PERF:-${CARGO_TARGET_DIR:-target}/release/spark-perf}"
}

# fake_gpus FOLDER [FLAG...]: builds the fake CUDA driver, with a fake NCCL
# (crates/perf/tests/fake_gpu).
fake_gpus() {
    local folder=$1 source
    shift
    # Linked on its own, so that it uses the program's sanitizer, if any. Products are rounded
    # before they are added, as in the kernels.
    for source in crates/perf/tests/fake_gpu/*.cpp; do
        c++ -std=c++17 -O1 -ffp-contract=off -Wall -Wextra -Werror -fPIC -Icrates/gpu/tests "$@" \
            -c "$source" -o "$folder/$(basename "$source").o"
    done
    # NCCL enqueues in CUDA's streams: both are one library.
    c++ -shared "$folder"/*.cpp.o -o "$folder/libcuda.so.1"
    rm "$folder"/*.cpp.o
    # With a real driver, the first name that the library tries is the system's own.
    ln "$folder/libcuda.so.1" "$folder/libcuda.so"
    ln "$folder/libcuda.so.1" "$folder/libnccl.so.2"
}

# base_system ROOT BUSYBOX: the files that every guest needs; it then runs /guest.sh.
base_system() {
    local root=$1 busybox=$2
    mkdir -p "$root"/{bin,dev,etc,proc,sys,tmp,run,var/run,root}
    printf '127.0.0.1 localhost guest\n::1 localhost\n' >"$root/etc/hosts"
    cp -L "$busybox" "$root/bin/busybox"
    ln -s busybox "$root/bin/sh"
    cat >"$root/init" <<'INIT'
#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd
hostname guest
ip link set lo up
# The firmware does not end its last line.
echo
for module in $(cat /modules 2>/dev/null); do insmod "$module"; done
sh /guest.sh
echo "GUEST EXIT CODE $?"
poweroff -f
INIT
    chmod +x "$root/init"
}

# soft_roce_system ROOT KERNEL MODULE...: base_system with the programs that make and use RDMA
# devices of soft-RoCE, and these modules.
soft_roce_system() {
    local root=$1 kernel=$2 file
    shift 2
    base_system "$root" /bin/busybox
    # busybox's shell prefers busybox's `ip`.
    rm "$root/bin/sh"
    place_program "$root" /bin/dash
    ln -s dash "$root/bin/sh"
    for file in ip tc rdma; do place_program "$root" "$(command -v $file)"; done
    place_program "$root" /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so
    place "$root" /etc/libibverbs.d/rxe.driver
    place_modules "$root" "$kernel" crc32_generic rdma_rxe rdma_ucm sch_netem "$@"
}

# boot SECONDS ROOT QEMU ARGUMENT...: boots ROOT as the initial file system, shows the console, and
# returns what /guest.sh returned, or 124 when the machine did not get there in time.
boot() {
    local seconds=$1 root=$2 log code
    shift 2
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$root.cpio.gz"
    log=$root.log
    # A machine must not outlive its script.
    setpriv --pdeathsig TERM timeout -k 5 "$seconds" "$@" -initrd "$root.cpio.gz" -nodefaults -nographic -serial stdio \
        -no-reboot </dev/null | sed -u 's/\r//g' | tee "$log" || true
    code=$(sed -n 's/^GUEST EXIT CODE \([0-9]*\)$/\1/p' "$log")
    if [ -z "$code" ]; then
        echo "the emulated machine ended, or was ended after $seconds s, without an exit code"
        return 124
    fi
    return "$code"
}
