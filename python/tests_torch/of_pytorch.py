"""Runs the tests that PyTorch ships of its backends, with the name of gloo exchanged for that of
spark_ccl.

    python of_pytorch.py [--ranks 2] [--match REGULAR-EXPRESSION] [--backend gloo] [--part 1/4]

Prints a line for each test, and how many have passed, failed and been skipped. `--backend gloo`
leaves the name as it is: what fails then fails without spark_ccl, too. `--backend nccl` runs the
tests of NCCL's backend, on the NCCL that PyTorch finds:

    LD_PRELOAD=libspark_nccl.so python of_pytorch.py --backend nccl

`--part 1/4` runs every fourth test, from the first.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

import torch

SHIPPED = Path(torch.__file__).parent / "testing/_internal/distributed/distributed_test.py"
# The module that the ranks import, too.
NAME = "exchanged_distributed_test"
# Appended to it: the tests as a class that starts ranks.
CASES = """

def with_variables(variables, run, *arguments, **options):
    os.environ.update(variables)
    run(*arguments, **options)


class Exchanged(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        # Not spawned: to import PyTorch takes longer than most tests. Tests of NCCL have a context
        # of CUDA here, which ranks cannot take over. So their ranks come from a process without a
        # context, which also has the earlier variables.
        ranks = torch.multiprocessing.get_context("forkserver" if BACKEND == "nccl" else "fork")
        ranks.set_forkserver_preload(["torch"])

        def start(target, args, **options):
            given = (dict(os.environ), target, *args)
            return ranks.Process(target=with_variables, args=given, **options)

        self._start_processes(start)
"""
# Tests of GPUs, and of other backends.
ELSEWHERE = re.compile("cuda|nccl|gpu|multigpu", re.IGNORECASE)


def main() -> None:
    parser = argparse.ArgumentParser(prog="of_pytorch.py")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--match", default="")
    parser.add_argument("--backend", default="spark_ccl")
    parser.add_argument("--part", type=part, default=(0, 1))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tests = SHIPPED.read_text()
        if arguments.backend == "nccl":
            tests += CASES
        else:
            tests = exchanged(tests, arguments.backend)
        Path(folder, f"{NAME}.py").write_text(tests)
        os.environ.update(BACKEND=arguments.backend, WORLD_SIZE=str(arguments.ranks))
        # Ranks find the module by what they take over.
        sys.path.insert(0, folder)
        done = unittest.TextTestRunner(sys.stdout, verbosity=2).run(chosen(arguments))
    broken = [*done.failures, *done.errors]
    passed = done.testsRun - len(broken) - len(done.skipped)
    print(f"{passed} passed, {len(broken)} failed, {len(done.skipped)} skipped")
    for test, _ in broken:
        print(f"failed: {test}")
    sys.exit(bool(broken))


def exchanged(text: str, backend: str) -> str:
    """The tests, with the backend's name in gloo's place, which ranks can start."""
    text = text.replace('"gloo"', f'"{backend}"')
    # Except in the lists of backends that PyTorch's profiler names.
    text = re.sub(r"(?<!\n    )dist\.Backend\.GLOO", f'"{backend}"', text)
    # It has all_to_all, which gloo did not have.
    text = text.replace('BACKEND != "mpi"', f'BACKEND not in ("mpi", "{backend}")')
    features = 'for _feature in ("ddp", "subgroup"):\n    DistTestCases.backend_feature[_feature]'
    features += f'.add("{backend}")\n'
    # Before the first of the decorators that ask for it.
    begin = text.index("\nclass NetWithBuffers")
    return f"{text[:begin]}\nimport spark_ccl.torch  # noqa\n{features}{text[begin:]}{CASES}"


def chosen(arguments: argparse.Namespace) -> unittest.TestSuite:
    cases = importlib.import_module(NAME).Exchanged
    names = unittest.defaultTestLoader.getTestCaseNames(cases)
    if arguments.backend != "nccl":
        names = [name for name in names if not ELSEWHERE.search(name)]
    names = [name for name in names if re.search(arguments.match, name)]
    first, step = arguments.part
    return unittest.TestSuite(cases(name) for name in names[first::step])


def part(text: str) -> tuple[int, int]:
    number, parts = map(int, text.split("/"))
    return number - 1, parts


if __name__ == "__main__":
    main()
