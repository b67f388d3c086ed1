# Ubuntu 24.04's userland, kept in the cache. Sourced after lib.sh. Needs Debian 12, and root.

# Where the userland is.
root=$cache/noble

untried() {
    echo "SKIPPED: Ubuntu's packages cannot be had (above is why), so this was not tried" >&2
    exit 77
}

# Makes the userland, unless it is there.
ubuntu_root() {
    [ -d "$root" ] || bootstrap
}

# Only what Ubuntu's key has signed is unpacked.
bootstrap() {
    local new=$root.new scripts=/usr/share/debootstrap/scripts
    remove "$new"
    gpg --batch --yes --dearmor -o "$new.gpg" tests/ubuntu.asc
    # Debian's debootstrap is older than noble, and all of Ubuntu's releases have one script.
    debootstrap --foreign --force-check-gpg --keyring="$new.gpg" --variant=minbase \
        --components=main,universe --include=ca-certificates \
        noble "$new" "" "$scripts/gutsy" >&2 || untried
    chroot "$new" /debootstrap/debootstrap --second-stage >&2
    # Tests run as this user, too.
    chroot "$new" useradd --home-dir /owner owner
    # Services that are installed do not start.
    printf '#!/bin/sh\nexit 101\n' >"$new/usr/sbin/policy-rc.d"
    chmod +x "$new/usr/sbin/policy-rc.d"
    rm "$new.gpg"
    mv "$new" "$root"
}

# Nothing that is mounted below.
remove() {
    rm -rf --one-file-system "$@"
}
