"""Runs a function as the ranks of a job, each in a process of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import spark_ccl

# Seconds: a guard against a deadlock, not a measurement.
LIMIT = 120


def run(function: Callable[..., Any], size: int, *, fails: bool = False, dies: tuple[int, ...] = ()) -> list[Any]:
    """Calls `function(communicator)` on each of `size` ranks. Returns their results, or raises.

    With `fails` the communicator is not closed: a failed one would raise its error. Ranks in `dies`
    end without an answer; their result is `None`.
    """
    context = multiprocessing.get_context("spawn")
    unique_id = spark_ccl.UniqueId()
    ranks = []
    for rank in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(target=_rank, args=(theirs, function, str(unique_id), rank, size, fails))
        process.start()
        theirs.close()
        ranks.append((process, ours))
    try:
        return [_answer(rank, answers, rank in dies) for rank, (_, answers) in enumerate(ranks)]
    finally:
        for process, _ in ranks:
            process.join(LIMIT)
            if process.is_alive():
                process.kill()


def _rank(answers: Connection, function: Callable[..., Any], unique_id: str, rank: int, size: int, fails: bool) -> None:
    try:
        communicator = spark_ccl.Communicator(spark_ccl.UniqueId.parse(unique_id), rank, size, timeout="30")
        with contextlib.nullcontext() if fails else communicator:
            answer = function(communicator)
        answers.send((True, answer))
    except BaseException:
        answers.send((False, traceback.format_exc()))


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
