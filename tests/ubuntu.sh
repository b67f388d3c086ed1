#!/bin/bash
# What the README has its readers do, in Ubuntu 24.04's userland, which DGX Sparks have. It is kept
# for the next time. Debian 12, root. Where Ubuntu's packages cannot be had, it says so, and ends
# with 77.
#   tests/ubuntu.sh root   both commands, beside nothing but what they install
#   tests/ubuntu.sh user   the tests, beside programs that Sparks have, by one who is not root
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh

: "${1:?root or user}"
root=$cache/ubuntu
# Ubuntu signs its packages with it, and no package of Debian has it.
key=F6ECB3762474EDA9D21B7022871920D1991BC93C
# Within that.
home=/owner

# Packages are unpacked, and nothing of them runs before their list is known to be Ubuntu's.
bootstrap() {
    local new=$root.new scripts=/usr/share/debootstrap/scripts
    local keys=$new/keys
    rm -rf "$new"
    # Debian's debootstrap is older than noble, and all of Ubuntu's releases have one script.
    debootstrap --foreign --no-check-gpg --variant=minbase --components=main,universe \
        --include=ca-certificates noble "$new" "" "$scripts/gutsy" >&2 &&
        dpkg-deb --fsys-tarfile "$new"/var/cache/apt/archives/ubuntu-keyring_*.deb |
        tar -xO ./usr/share/keyrings/ubuntu-archive-keyring.gpg >"$keys" &&
        gpg --batch --no-default-keyring --keyring "$keys" --export "$key" >"$keys.one" &&
        gpgv -q --keyring "$keys.one" -o /dev/null \
            "$new"/var/lib/apt/lists/*_noble_InRelease &&
        chroot "$new" /debootstrap/debootstrap --second-stage >&2 &&
        chroot "$new" useradd --create-home --home-dir "$home" owner &&
        # Services that are installed do not start.
        printf '#!/bin/sh\nexit 101\n' >"$new/usr/sbin/policy-rc.d" &&
        chmod +x "$new/usr/sbin/policy-rc.d" &&
        mv "$new" "$root"
}

# inside USER FOLDER COMMAND...: there, with mounts, processes and shared memory of its own. It is
# the root of these mounts: tests enter namespaces by nsenter, which leads out of a chroot.
inside() {
    local toolchain
    toolchain=$(rustc --print sysroot)
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -euc '
        mount --bind "$1" "$1"
        cd "$1"
        mkdir -p opt/rust
        mount --bind "$2" opt/rust
        mount -t proc proc proc
        mount --rbind /sys sys
        mount --rbind /dev dev
        mount -t tmpfs shm dev/shm
        mount -t tmpfs tmp tmp
        pivot_root . mnt
        umount -l mnt
        exec chroot --userspec="$3" / /usr/bin/env -i HOME="$4" CARGO_HOME="$4/.cargo" \
            CARGO_NET_OFFLINE=true CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 \
            CARGO_PROFILE_RELEASE_DEBUG=0 DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8 \
            PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            bash -euc "cd \"\$1\" && shift && exec \"\$@\"" _ "${@:5}"
    ' _ "$root" "$toolchain" "$1" "$home" "${@:2}"
}

# installed PACKAGE...
installed() {
    cp /etc/resolv.conf /etc/hosts "$root/etc/" &&
        inside root / apt-get update -qq &&
        inside root / apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# checkout USER: the sources as they were committed, and the crates that they need, are the user's.
checkout() {
    local at=$root$home/spark-ccl built
    # What was built of the same commit is not built anew.
    built=$(git -c safe.directory='*' -C "$at" rev-parse HEAD 2>/dev/null) || true
    if [ "$built" != "$(git rev-parse HEAD)" ]; then
        rm -rf "$at.new"
        # Objects that are one file in both would get the user as their owner here, too.
        git clone -q --no-hardlinks . "$at.new"
        [ ! -d "$at/target" ] || mv "$at/target" "$at.new/"
        rm -rf "$at"
        mv "$at.new" "$at"
    fi
    CARGO_HOME=$root$home/.cargo cargo fetch -q --locked
    chroot "$root" chown -R "$1" "$home"
}

untried() {
    echo "SKIPPED: Ubuntu's packages cannot be had (above is why), so this was not tried" >&2
    exit 77
}

need debootstrap gpg gpgv
[ -d "$root" ] || bootstrap || untried
# With what the sources came from, and what the README asks for.
installed git gcc libc6-dev || untried
for user in "$@"; do
    case $user in
    root)
        checkout root
        inside root "$home/spark-ccl" cargo run --release --bin spark-perf -- \
            all_reduce -b 8 -e 1M -f 2
        inside root "$home/spark-ccl" env \
            SPARK_CCL_TEST_REQUIRE=c++,chown,launchers,namespaces,nft,rustc,users tests/run.sh
        ;;
    user)
        # What the tests need, as they install it where they may, and what Sparks have besides.
        # shellcheck disable=SC2046
        installed $(sed -n 's/^need //p' tests/run.sh) \
            netplan.io ethtool sudo avahi-utils openssh-server || untried
        checkout owner
        inside owner "$home/spark-ccl" tests/run.sh
        ;;
    *)
        echo "neither root nor user: $user" >&2
        exit 2
        ;;
    esac
done
