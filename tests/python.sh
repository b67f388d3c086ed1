#!/bin/bash
# Builds the Python package, installs it into an environment of its own as users do, checks its
# types, and tests it. Debian 12.
#   tests/python.sh [argument of `unittest`]...
#   SPARK_LIBRARY=target/ci/libspark_ccl.so tests/python.sh      # with one that is built already
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
need python3 python3-venv binutils

environment=$(dirname "$cache")/python
if ! [ -x "$environment/bin/python" ]; then
    /usr/bin/python3 -m venv "$environment"
fi
"$environment/bin/pip" install -q -r python/tests/requirements.txt

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$environment/bin/pip" wheel -q --no-deps -w "$folder" ./python
"$environment/bin/pip" install -q --no-deps --force-reinstall "$folder"/spark_ccl-*.whl

# PyPI's own tool must find the systems that the wheel names: they have what it needs, and no older
# one has.
system=$(echo "$folder"/spark_ccl-*.whl | sed 's/.*-none-\(.*\)\.whl/\1/')
found=$("$environment/bin/auditwheel" show --json "$folder"/spark_ccl-*.whl)
"$environment/bin/python" -c 'import json, sys; sys.exit(json.loads(sys.argv[1])["overall_tag"] != sys.argv[2])' \
    "$found" "$system" || { echo "the wheel is for $system, and auditwheel says: $found" >&2 && exit 1; }

cd python
"$environment/bin/ruff" check --no-cache .
"$environment/bin/ruff" format --no-cache --check .
"$environment/bin/mypy" --cache-dir "$folder/mypy" spark_ccl tests build_library.py
# Not from here: the installed package is tested, not the sources.
cd tests
# Measurements of this machine must not change which algorithms run.
export SPARK_CCL_TUNING=off PYTHONDONTWRITEBYTECODE=1
"$environment/bin/python" -m unittest "$@"
