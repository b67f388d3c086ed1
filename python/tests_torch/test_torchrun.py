"""Under torchrun: the program of the package's README, as it stands there; the benchmark; a
restart."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
# Seconds: a guard against a deadlock, not a measurement.
LIMIT = 300
# Rank 1 is killed the first time.
RESTARTED = """
import os, signal, torch, torch.distributed as dist, spark_ccl.torch
dist.init_process_group("spark_ccl")
total = torch.ones(1)
dist.all_reduce(total)
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
if restarts == "0" and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print(f"restart {restarts}: {total.item()}\\n", end="")
dist.destroy_process_group()
"""


def torchrun(*arguments: str) -> str:
    # Its own port: other jobs may have the usual one.
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class UnderTorchrun(unittest.TestCase):
    def test_the_program_of_the_readme(self) -> None:
        (program,) = (
            block
            for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
            if "spark_ccl.torch" in block
        )
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "program.py")
            file.write_text(program)
            lines = torchrun("--nproc-per-node", "2", str(file)).splitlines()
        self.assertEqual(sorted(lines), [f"rank {rank}: loss 0.0000" for rank in range(2)])

    def test_a_restart(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "program.py")
            file.write_text(RESTARTED)
            lines = torchrun("--nproc-per-node", "2", "--max-restarts", "1", str(file)).splitlines()
        self.assertEqual(sorted(lines), ["restart 1: 2.0"] * 2)

    def test_the_benchmark(self) -> None:
        lines = torchrun("--nproc-per-node", "2", "-m", "spark_ccl.bench", "--rounds", "1").splitlines()
        for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "DDP step"):
            self.assertTrue(any(line.startswith(f"| {name} |") for line in lines), lines)


if __name__ == "__main__":
    unittest.main()
