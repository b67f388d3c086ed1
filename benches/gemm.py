"""A matrix product beside all_reduce, by our own kernels and by NCCL, in turns: how much each slows
the other down on the same GPU.

    torchrun --nproc-per-node 2 benches/gemm.py           # a GPU for each rank; prints Markdown

The package spark_ccl must be importable. Both streams are held back until everything is enqueued,
so the processor's time does not count. The loss of one is how much longer its work takes than
alone, relative to that, while the other runs all the time. The loss for each call is the delay of a
product divided by the calls that ran meanwhile: a faster all_reduce completes more of them. Figures
are medians of the rounds, of the slowest rank. CTAs are those of the kernels in a profile of one
call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("SPARK_CCL_BACKEND", "engine")

import torch
import torch.distributed as dist

import spark_ccl.torch  # noqa: F401

BACKENDS = ("spark_ccl", "nccl")
SIZES = (1 << 20, 16 << 20, 128 << 20)
WIDTH = 4096
# A stream takes about 1,000 kernels and events, and a call is several.
CALLS = 100
# Cycles of the GPU's clock, about 50 ms: longer than it takes to enqueue the rest.
HOLD = 100_000_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="benches/gemm.py")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    rounds = parser.parse_args().rounds
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    product = Product(device)
    for row in [table_head(), *(line for size in SIZES for line in rows(product, groups, size, rounds))]:
        if dist.get_rank() == 0:
            print(row, flush=True)
    for group in groups.values():
        dist.destroy_process_group(group)
    dist.destroy_process_group()


class Product:
    """Products of matrices, always the same."""

    def __init__(self, device: torch.device) -> None:
        self.left, self.right = (torch.randn(WIDTH, WIDTH, device=device, dtype=torch.bfloat16) for _ in range(2))
        self.out = torch.empty_like(self.left)

    def __call__(self) -> None:
        torch.mm(self.left, self.right, out=self.out)


@dataclass
class Span:
    """Work that is enqueued a number of times in a stream of its own; the times of its ends, in ms
    from its begin."""

    call: Callable[[], None]
    times: int
    stream: torch.cuda.Stream

    def enqueue(self, begin: torch.cuda.Event) -> list[torch.cuda.Event]:
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(self.times)]
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(begin)
            for end in ends:
                self.call()
                end.record()
        return ends


def run(*spans: Span) -> list[list[float]]:
    """Runs them from the same moment on; returns when each run of each ended, in ms."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    torch.cuda._sleep(HOLD)
    begin = torch.cuda.Event(enable_timing=True)
    begin.record()
    ends = [span.enqueue(begin) for span in spans]
    torch.cuda.synchronize()
    return [[begin.elapsed_time(end) for end in of_span] for of_span in ends]


@dataclass
class Loss:
    """One round: microseconds of a call, and the losses."""

    alone: float
    product: float
    each: float
    reduction: float


def lose(product: Product, reduce: Callable[[], None], streams: list[torch.cuda.Stream]) -> Loss:
    ours, theirs = streams
    [alone] = run(Span(reduce, CALLS, theirs))
    [one] = run(Span(product, 1, ours))
    # The product ends first, and the ranks need not agree on the number of calls.
    products = max(1, min(CALLS, int(0.5 * alone[-1] / one[-1])))
    [baseline] = run(Span(product, products, ours))
    beside, calls = run(Span(product, products, ours), Span(reduce, CALLS, theirs))
    meanwhile = max(1, sum(end <= beside[-1] for end in calls))
    late = beside[-1] - baseline[-1]
    return Loss(
        alone=1000 * alone[-1] / CALLS,
        product=late / baseline[-1],
        each=1000 * late / meanwhile,
        reduction=calls[meanwhile - 1] / alone[meanwhile - 1] - 1,
    )


def rows(product: Product, groups: dict[str, dist.ProcessGroup], size: int, rounds: int) -> list[str]:
    streams = [torch.cuda.Stream() for _ in range(2)]
    values = torch.zeros(size // 2, device="cuda", dtype=torch.bfloat16)
    calls = {name: reduction(values, group) for name, group in groups.items()}
    grids = {name: grid(call) for name, call in calls.items()}
    losses: dict[str, list[Loss]] = {name: [] for name in groups}
    for number in range(rounds + 1):
        for name in sorted(calls, reverse=number % 2 == 1):
            loss = lose(product, calls[name], streams)
            # The first round warms up.
            if number > 0:
                losses[name].append(loss)
    return [table_row(size, name, grids[name], losses[name]) for name in groups]


def reduction(values: torch.Tensor, group: dist.ProcessGroup) -> Callable[[], None]:
    return lambda: dist.all_reduce(values, group=group)


def grid(call: Callable[[], None]) -> str:
    """The CTAs and threads of the kernels of a call."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        with open(file.name, encoding="utf-8") as trace:
            events = json.load(trace)["traceEvents"]
    kernels = [event["args"] for event in events if "grid" in event.get("args", {})]
    return ", ".join(f"{kernel['grid'][0]} x {kernel['block'][0]}" for kernel in kernels) or "not known"


def table_head() -> str:
    heads = ["bytes", "backend", "CTAs x threads", "call alone us", "product loses", "for each call us", "call loses"]
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"


def table_row(size: int, name: str, grids: str, losses: list[Loss]) -> str:
    def slowest(field: str) -> float:
        median = statistics.median(getattr(loss, field) for loss in losses)
        figure = torch.tensor([median], device="cuda", dtype=torch.float64)
        dist.all_reduce(figure, op=dist.ReduceOp.MAX)
        return figure.item()

    alone, product, each, call = map(slowest, ("alone", "product", "each", "reduction"))
    cells = [f"{size:,}", name, grids, f"{alone:.1f}", f"{product:.1%}", f"{each:.2f}", f"{call:.1%}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
