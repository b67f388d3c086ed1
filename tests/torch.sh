#!/bin/bash
# Tests the PyTorch backend of the Python package, as users install it. PyTorch comes from PyPI (5.4
# GB with its libraries, kept in $XDG_CACHE_HOME/spark-ccl). Without a network the tests are
# skipped, unless SPARK_CCL_TEST_REQUIRE has "torch". Debian 12.
#   tests/torch.sh [argument of `unittest`]...
#   SPARK_CCL_TEST_TORCH=2.4.1 tests/torch.sh      # with this version, in an environment of its own
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/vm/lib.sh
need python3 python3-venv binutils

version=${SPARK_CCL_TEST_TORCH:-}
environment=$(dirname "$cache")/torch${version:+-$version}
if ! [ -x "$environment/bin/torchrun" ]; then
    /usr/bin/python3 -m venv "$environment"
    if ! "$environment/bin/pip" install -q "torch${version:+==$version}"; then
        echo "SKIPPED: PyTorch is not here, and could not be fetched" >&2
        case ,${SPARK_CCL_TEST_REQUIRE:-}, in *,torch,*) exit 1 ;; *) exit 0 ;; esac
    fi
fi
"$environment/bin/pip" install -q -r python/tests/requirements.txt

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$environment/bin/pip" wheel -q --no-deps -w "$folder" ./python
"$environment/bin/pip" install -q --no-deps --force-reinstall "$folder"/spark_ccl-*.whl

cd python
# The types are those of the newest.
if [ -z "$version" ]; then
    "$environment/bin/mypy" --cache-dir "$folder/mypy" spark_ccl
fi
# Not from here: the installed package is tested, not the sources.
cd tests_torch
# Measurements of this machine must not change which algorithms run.
export SPARK_CCL_TUNING=off PYTHONDONTWRITEBYTECODE=1
"$environment/bin/python" -W ignore -m unittest "$@"
