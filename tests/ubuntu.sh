#!/bin/bash
# Runs the README's commands in Ubuntu 24.04's userland. Keeps that userland in the cache. Debian
# 12, root. Ends with 77 if Ubuntu's packages are not available.
#   tests/ubuntu.sh root   both commands, beside nothing but what they install
#   tests/ubuntu.sh user   the tests, beside programs that Sparks have, by one who is not root
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
. tests/vm/ubuntu.sh

# What a run adds to the userland, and the files that stay for the next run.
layer=$cache/noble.layer
kept=$cache/noble.home
# Its place in the userland.
home=/owner

# Forgets what was installed.
fresh() {
    remove "$layer"
    mkdir -p "$layer"/{upper/etc,work,whole} "$kept"
    cp /etc/resolv.conf /etc/hosts "$layer/upper/etc/"
    # A failed mount does not count as missing packages.
    inside root / true
}

# inside USER FOLDER COMMAND...: runs a command in the userland, with mounts, processes and shared
# memory of its own. The userland is the root of these mounts: tests enter namespaces by nsenter,
# which leads out of a chroot.
inside() {
    local toolchain
    toolchain=$(rustc --print sysroot)
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -euc '
        cd "$2"
        mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay whole
        cd whole
        mkdir -p opt/rust ".$5"
        mount --bind "$3" ".$5"
        mount --bind "$4" opt/rust
        mount -o remount,bind,ro opt/rust
        mount -t proc proc proc
        mount --rbind /sys sys
        mount --rbind /dev dev
        mount -t tmpfs shm dev/shm
        mount -t tmpfs tmp tmp
        pivot_root . mnt
        umount -l mnt
        exec chroot --userspec="$6" / /usr/bin/env -i HOME="$5" CARGO_HOME="$5/.cargo" \
            CARGO_NET_OFFLINE=true CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 \
            CARGO_PROFILE_RELEASE_DEBUG=0 DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8 \
            PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            bash -euc "cd \"\$1\" && shift && exec \"\$@\"" _ "${@:7}"
    ' _ "$root" "$layer" "$kept" "$toolchain" "$home" "$@"
}

# installed PACKAGE...: installs them, git, and what the README asks for.
installed() {
    local install=(apt-get install -y -qq --no-install-recommends git gcc libc6-dev "$@")
    inside root / apt-get update -qq -o APT::Update::Error-Mode=any || untried
    inside root / "${install[@]}" --download-only >/dev/null || untried
    inside root / "${install[@]}" >/dev/null
}

# checkout USER: gives the user the committed sources, and the crates that they need.
checkout() {
    local at=$kept/spark-ccl built
    # A build of the same commit is not made anew.
    built=$(git -c safe.directory='*' -C "$at" rev-parse HEAD 2>/dev/null) || true
    if [ "$built" != "$(git rev-parse HEAD)" ]; then
        remove "$at.new"
        # Objects that are hard links would change their owner here, too.
        git clone -q --no-hardlinks . "$at.new"
        [ ! -d "$at/target" ] || mv "$at/target" "$at.new/"
        remove "$at"
        mv "$at.new" "$at"
    fi
    CARGO_HOME=$kept/.cargo cargo fetch -q --locked
    inside root / chown -R "$1" "$home"
}

try_root() {
    installed
    checkout root
    inside root "$home/spark-ccl" cargo run --release --bin spark-perf -- \
        all_reduce -b 8 -e 1M -f 2
    inside root "$home/spark-ccl" env \
        SPARK_CCL_TEST_REQUIRE=c++,chown,launchers,namespaces,nft,rustc,users tests/run.sh
}

try_user() {
    # What the tests need, as they install it where they may, and what Sparks have besides.
    # shellcheck disable=SC2046
    installed $(sed -n 's/^need //p' tests/run.sh) \
        netplan.io ethtool sudo avahi-utils openssh-server
    checkout owner
    inside owner "$home/spark-ccl" tests/run.sh
}

: "${1:?root or user}"
for user in "$@"; do
    declare -F "try_$user" >/dev/null || {
        echo "neither root nor user: $user" >&2
        exit 2
    }
done
need debootstrap gpg gpgv
ubuntu_root
trap 'remove "$layer"' EXIT
for user in "$@"; do
    fresh
    "try_$user"
done
