#!/bin/bash
# Packages all crates, and checks the packages: each has the licenses' text, and third-party
# material has its own; the crate that is stamped with its commit has none if it is unpacked within
# another project's checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
need git python3

fail() {
    echo "$1" >&2
    exit 1
}

# So that other kinds of builds need not be made anew.
export CARGO_TARGET_DIR=target/packages
rm -rf target/packages/package
cargo package --quiet --workspace --no-verify --allow-dirty 2>&1 | sed '/^warning: manifest has no/,/^$/d'

unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
packages=(target/packages/package/*.crate)
members=$(cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys; print(len(json.load(sys.stdin)["packages"]))')
[ ${#packages[@]} = "$members" ] || fail "${#packages[@]} packages of $members crates"
for package in "${packages[@]}"; do
    tar -xzf "$package" -C "$unpacked"
    folder=$unpacked/$(basename "$package" .crate)
    for license in MIT APACHE; do
        cmp "LICENSE-$license" "$folder/LICENSE-$license"
    done
done
grep -q Bitstream "$unpacked"/spark-ccl-console-*/font/LICENSE
grep -q Topspin "$unpacked"/spark-ccl-verbs-*/src/raw/bindings.rs

git init --quiet "$unpacked"
git -C "$unpacked" -c user.name=nobody -c user.email=nobody commit --quiet --allow-empty -m "another project"
for folder in "$unpacked"/spark-ccl-[0-9]*; do
    rustc --edition 2024 -o "$unpacked/stamp" "$folder/build.rs"
    stamp=$(cd "$folder" && CARGO_PKG_VERSION=1.2.3 "$unpacked/stamp" | sed -n 's/^cargo:rustc-env=BUILT_VERSION=//p')
    [ "$stamp" = 1.2.3 ] || fail "an unpacked package is stamped $stamp, not 1.2.3"
done
echo "${#packages[@]} packages"
