"""Measures PyTorch's collectives on CPU tensors by spark_ccl and by gloo, in turn, and prints
tables in Markdown.

    python -m spark_ccl.bench  # starts 2 and then 4 ranks on this machine
    torchrun --nproc-per-node 2 -m spark_ccl.bench  # measures the ranks that torchrun has started

A time is rank 0's of one call, the median of the rounds. A spread is the widest difference between
two rounds, relative to the median; the first is ours. A ratio above 1 says how many times as long
gloo takes. The last line is a step of training with DistributedDataParallel: 12 layers, 50 MB of
gradients.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import spark_ccl.torch  # noqa: F401

BACKENDS = ("gloo", "spark_ccl")
# About how many seconds the calls of a size take in a round.
ROUND = 0.3
LAYERS, WIDTH, BATCH = 12, 1024, 32
# Of glibc's `malloc.h`.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

Call = Callable[[torch.Tensor, torch.Tensor, dist.ProcessGroup], object]


def all_reduce(whole: torch.Tensor, block: torch.Tensor, group: dist.ProcessGroup) -> None:
    dist.all_reduce(whole, group=group)


def all_gather(whole: torch.Tensor, block: torch.Tensor, group: dist.ProcessGroup) -> None:
    dist.all_gather_into_tensor(whole, block, group=group)


def reduce_scatter(whole: torch.Tensor, block: torch.Tensor, group: dist.ProcessGroup) -> None:
    dist.reduce_scatter_tensor(block, whole, group=group)


def broadcast(whole: torch.Tensor, block: torch.Tensor, group: dist.ProcessGroup) -> None:
    dist.broadcast(whole, 0, group=group)


def all_to_all(whole: torch.Tensor, block: torch.Tensor, group: dist.ProcessGroup) -> None:
    dist.all_to_all_single(torch.empty_like(whole), whole, group=group)


CALLS: dict[str, tuple[Call, tuple[int, ...]]] = {
    "all_reduce": (all_reduce, (8, 65_536, 1 << 20, 16 << 20, 128 << 20)),
    "all_gather": (all_gather, (65_536, 16 << 20)),
    "reduce_scatter": (reduce_scatter, (65_536, 16 << 20)),
    "broadcast": (broadcast, (65_536, 16 << 20)),
    "all_to_all": (all_to_all, (65_536, 16 << 20)),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="spark_ccl.bench")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each backend (5)")
    parser.add_argument("--ranks", default="2,4", help="how many ranks to start, one run for each (2,4)")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        measure(arguments.rounds)
        return
    for ranks in arguments.ranks.split(","):
        start(int(ranks), arguments.rounds)


def start(ranks: int, rounds: int) -> None:
    """Measures with ranks of its own."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    # Without it, torchrun prints that it has set this.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    subprocess.run([*launcher, "-m", "spark_ccl.bench", "--rounds", str(rounds)], check=True, env=environment)


def measure(rounds: int) -> None:
    """Measures with the ranks that were started, of which this is one."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups: dict[str, Any] = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    day = datetime.date.today().isoformat()
    tell(f"{os.cpu_count()} cores, PyTorch {torch.__version__}, {rounds} rounds, {day}:\n")
    tell(f"**{dist.get_world_size()} ranks**\n")
    tell("| call | bytes | gloo us | spark_ccl us | ratio | spread | gloo's spread |")
    tell("|---|---|---|---|---|---|---|")
    for name, (call, sizes) in CALLS.items():
        for size in sizes:
            report(
                name, binary(size), {backend: of_call(call, size, group) for backend, group in groups.items()}, rounds
            )
    keep_freed_memory()
    steps = {backend: of_training(group) for backend, group in groups.items()}
    report("DDP step", f"{4 * LAYERS * (WIDTH * WIDTH + WIDTH) / 1e6:.0f} MB", steps, rounds)
    alone = of_rank_alone(rounds)
    tell(f"\nThe step takes one rank alone {alone * 1e3:.1f} ms.\n")
    dist.destroy_process_group()


def of_call(call: Call, size: int, group: dist.ProcessGroup) -> Callable[[], object]:
    ranks = dist.get_world_size()
    block = torch.zeros(-(-size // 4 // ranks))
    whole = torch.zeros(block.numel() * ranks)
    return lambda: call(whole, block, group)


def of_training(group: dist.ProcessGroup | None) -> Callable[[], object]:
    """A step of training; without a group, of one rank by itself."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    model = layers if group is None else DistributedDataParallel(layers, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    given = torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(given).pow(2).mean().backward()
        optimizer.step()

    return step


def keep_freed_memory() -> None:
    """Has the C library keep what is freed.

    Each step frees its gradients. The C library would return those to the kernel that lie at the
    end of its heap, which are the second model's: each of its steps would get 12,000 page faults,
    and none of the first model's.
    """
    libc = ctypes.CDLL(None)
    # Older versions take no more than 32 MiB.
    kept = [libc.mallopt(M_TRIM_THRESHOLD, 1 << 30), libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)]
    if 0 in kept:
        tell("note: the C library may return freed memory to the kernel, which makes steps slower")


def of_rank_alone(rounds: int) -> float:
    """Seconds of a step that only rank 0 does; the others wait."""
    times = [0.0]
    if dist.get_rank() == 0:
        step = of_training(None)
        repeated(step, 3)
        times = [repeated(step, 5) for _ in range(rounds)]
    dist.barrier()
    return statistics.median(times)


def report(name: str, size: str, calls: dict[str, Callable[[], object]], rounds: int) -> None:
    """Measures the backends in turn, and prints a line."""
    repeats = {backend: calibrated(call) for backend, call in calls.items()}
    times: dict[str, list[float]] = {backend: [] for backend in calls}
    for _ in range(rounds):
        for backend, call in calls.items():
            times[backend].append(timed(call, repeats[backend]))
    gloo, ours = (statistics.median(times[backend]) for backend in BACKENDS)
    of_gloo, of_ours = (
        f"{100 * (max(times[backend]) - min(times[backend])) / median:.0f} %"
        for backend, median in zip(BACKENDS, (gloo, ours))
    )
    cells = (name, size, shown(gloo * 1e6), shown(ours * 1e6), shown(gloo / ours), of_ours, of_gloo)
    tell(f"| {' | '.join(cells)} |")


def binary(size: int) -> str:
    """Bytes in the largest unit of which they are a whole number."""
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def shown(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def calibrated(call: Callable[[], object]) -> int:
    """The number of calls of a round, the same on all ranks."""
    timed(call, 3)
    repeats = torch.tensor(max(3, int(ROUND / timed(call, 3))))
    dist.broadcast(repeats, 0)
    return int(repeats)


def timed(call: Callable[[], object], repeats: int) -> float:
    """Seconds per call that all ranks make."""
    dist.barrier()
    return repeated(call, repeats)


def repeated(call: Callable[[], object], repeats: int) -> float:
    """Seconds per call."""
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def tell(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
