"""Measures PyTorch's collectives on CPU tensors by spark_ccl and by gloo, in turn.

    torchrun --nproc-per-node 2 -m spark_ccl.bench

Prints medians over rounds, of rank 0's time per call. The last line is a step of training with
DistributedDataParallel: 12 layers, 50 MB of gradients.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import spark_ccl.torch  # noqa: F401

BACKENDS = ("gloo", "spark_ccl")
# Seconds that the calls of a size take in a round, about.
ROUND = 0.3
LAYERS, WIDTH, BATCH = 12, 1024, 32

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
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups: dict[str, Any] = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    tell("call             bytes       gloo us  spark_ccl us   ratio   spread")
    for name, (call, sizes) in CALLS.items():
        for size in sizes:
            report(name, size, {backend: of_call(call, size, group) for backend, group in groups.items()}, rounds)
    steps = {backend: of_training(group) for backend, group in groups.items()}
    report("DDP step", 4 * LAYERS * (WIDTH * WIDTH + WIDTH), steps, rounds)
    dist.destroy_process_group()


def of_call(call: Call, size: int, group: dist.ProcessGroup) -> Callable[[], object]:
    ranks = dist.get_world_size()
    block = torch.zeros(-(-size // 4 // ranks))
    whole = torch.zeros(block.numel() * ranks)
    return lambda: call(whole, block, group)


def of_training(group: dist.ProcessGroup) -> Callable[[], object]:
    layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    model = DistributedDataParallel(layers, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    given = torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(given).pow(2).mean().backward()
        optimizer.step()

    return step


def report(name: str, size: int, calls: dict[str, Callable[[], object]], rounds: int) -> None:
    """Measures the backends in turn, and prints a line."""
    repeats = {backend: calibrated(call) for backend, call in calls.items()}
    times: dict[str, list[float]] = {backend: [] for backend in calls}
    for _ in range(rounds):
        for backend, call in calls.items():
            times[backend].append(timed(call, repeats[backend]))
    gloo, ours = (statistics.median(times[backend]) for backend in BACKENDS)
    spread = (max(times[BACKENDS[1]]) - min(times[BACKENDS[1]])) / ours
    tell(f"{name:14s}{size:>10d}{gloo * 1e6:>12.1f}{ours * 1e6:>14.1f}{gloo / ours:>8.2f}{spread:>8.0%}")


def calibrated(call: Callable[[], object]) -> int:
    """How many calls a round has: as many on all ranks."""
    timed(call, 3)
    repeats = torch.tensor(max(3, int(ROUND / timed(call, 3))))
    dist.broadcast(repeats, 0)
    return int(repeats)


def timed(call: Callable[[], object], repeats: int) -> float:
    """Seconds per call."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def tell(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
