"""Runs a function as the ranks of a process group, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
import unittest
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from spark_ccl.torch.versions import HAS_BACKENDS, VERSION

# `spark_ccl` beside another backend, which needs no GPU until it gets a tensor on one.
MIXED = "cpu:spark_ccl,cuda:gloo"
# The groups of tests that use both.
BACKENDS = ("spark_ccl", MIXED) if HAS_BACKENDS else ("spark_ccl",)
# Seconds: a guard against a deadlock, not a measurement.
LIMIT = 180


def since(*version: int) -> Callable[[Any], Any]:
    """Skips a test before this version of PyTorch."""
    return unittest.skipIf(version > VERSION, f"PyTorch {'.'.join(map(str, version))} or newer")


beside_others = unittest.skipUnless(HAS_BACKENDS, "this version of PyTorch has no backends in Python")


def run(
    function: Callable[[], Any],
    size: int,
    *,
    backend: str = "spark_ccl",
    dies: tuple[int, ...] = (),
    destroys: bool = True,
    on_gpus: bool = False,
) -> list[Any]:
    """Calls `function()` on each of `size` ranks of a process group. Returns their results, or
    raises.

    Ranks in `dies` end without an answer; their result is `None`. Without `destroys`, ranks end
    without destroying the group. With `on_gpus`, the group gets the GPU of each rank, which ranks
    share if there are fewer.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_rank, args=(theirs, function, backend, f"{folder}/store", rank, size, destroys, on_gpus)
            )
            process.start()
            theirs.close()
            ranks.append((process, ours))
        try:
            found = [_answer(rank, answers, rank in dies) for rank, (_, answers) in enumerate(ranks)]
        finally:
            for process, _ in ranks:
                process.join(LIMIT)
                if process.is_alive():
                    process.kill()
        for rank, (process, _) in enumerate(ranks):
            assert rank in dies or process.exitcode == 0, f"rank {rank} has ended with {process.exitcode}"
        return found


def _rank(
    answers: Connection,
    function: Callable[[], Any],
    backend: str,
    store: str,
    rank: int,
    size: int,
    destroys: bool,
    on_gpus: bool,
) -> None:
    import torch
    import torch.distributed as dist

    import spark_ccl.torch  # noqa: F401

    torch.set_num_threads(1)
    try:
        given: dict[str, Any] = {"timeout": timedelta(seconds=60)}
        if on_gpus:
            given["device_id"] = torch.device("cuda", rank % torch.cuda.device_count())
            torch.cuda.set_device(given["device_id"])
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, **given)
        answer = function()
        if destroys:
            dist.destroy_process_group()
        answers.send((True, answer))
    except BaseException:
        answers.send((False, traceback.format_exc()))
    if backend == "gloo":
        # Gloo's threads outlive its group. A thread that releases a call's Python objects while
        # Python ends aborts the process.
        os._exit(0)


def _answer(rank: int, answers: Connection, dies: bool) -> Any:
    if not answers.poll(LIMIT):
        raise TimeoutError(f"rank {rank} has not answered for {LIMIT} s")
    try:
        works, answer = answers.recv()
    except EOFError:
        if dies:
            return None
        raise RuntimeError(f"rank {rank} died without an answer") from None
    if not works:
        raise AssertionError(f"rank {rank}:\n{answer}")
    return answer
