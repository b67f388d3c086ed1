# Shared by scripts that want NVIDIA's libraries from PyPI. Sourced after tests/vm/lib.sh.

wheels=$(dirname "$cache")

# fetch_wheel PACKAGE==VERSION HASH FOLDER FILE...: puts the wheel's libraries, or headers, FILE...
# into a folder. If neither the folder nor PyPI has them, it returns 1. A wheel with another hash
# ends the script.
fetch_wheel() {
    local package=$1 hash=$2 folder=$3 work said
    shift 3
    [ -e "$folder/$1" ] && return
    need python3-pip
    mkdir -p "$folder"
    work=$(mktemp -d -p "$folder")
    echo "$package --hash=sha256:$hash" >"$work/wheels"
    if ! /usr/bin/python3 -m pip download -q --no-deps --only-binary :all: --require-hashes \
        -r "$work/wheels" -d "$work" 2>&1 | tee "$work/said" >&2 ||
        ! /usr/bin/python3 -m zipfile -e "$work"/*.whl "$work"; then
        # A wheel with another hash must not count as missing.
        said=$(cat "$work/said")
        rm -rf "$work"
        [[ ${said^^} != *HASH* ]] || exit 1
        return 1
    fi
    # If the first file is there, all are.
    while [ $# -gt 0 ]; do
        mv "$work"/nvidia/*/*/"${!#}" "$folder/"
        set -- "${@:1:$#-1}"
    done
    rm -rf "$work"
}
