"""Translates a call of PyTorch to calls of the communicator."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from ..communicator import Communicator
from ..errors import InvalidError
from ..work import Work as Started
from .blocks import Tensors, apart
from .tensors import check_all_on
from .work import Futures, Work

_NO_TIME = timedelta(0)
# The library's maximum; a longer timeout is meant as no limit.
LONGEST = timedelta(days=49)
_HOST = torch.device("cpu")


def options(kind: Any, given: Any, name: str = "") -> Any:
    """The given options, or the defaults; an option of this name may be given by itself."""
    if hasattr(given, "timeout"):
        return given
    made = kind()
    if given is not None:
        setattr(made, name, given)
    return made


def is_async(opts: Any) -> bool:
    """Whether a call is waited for later. Older versions of PyTorch wait themselves, and do not say
    whether they will."""
    return opts is None or bool(getattr(opts, "asyncOp", True))


def limit_of(opts: Any) -> timedelta | None:
    """How long a call may take, by its options; `None` for the group's timeout."""
    return None if opts is None or opts.timeout <= _NO_TIME else min(opts.timeout, LONGEST)


def seconds_of(opts: Any) -> float | None:
    """The same in seconds."""
    limit = limit_of(opts)
    return None if limit is None else limit.total_seconds()


class CallStarter:
    """A communicator, and how calls begin on it."""

    _communicator: Communicator
    _rank: int
    _size: int
    _timeout: timedelta
    _futures: Futures

    def _start(self, opts: Any, function: str, *arguments: Any, keep: Any, factor: Any = None) -> list[Started]:
        """Makes a call; returns it if it is only started."""
        check_all_on(_HOST, keep)
        started = self._communicator._handle.run(
            function,
            *arguments,
            keep=(keep,),
            name=None,
            factor=factor,
            timeout=seconds_of(opts),
            async_op=is_async(opts),
        )
        return [] if started is None else [started]

    def _work(self, started: list[Started], result: Tensors, finish: Callable[[], None] | None = None) -> Work:
        work = Work(started, list(result), self._futures, finish)
        if not started:
            work.wait()
        return work

    def _source(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """What is sent of the source: itself in place, where the shorter one is this rank's block
        of the other."""
        block, whole = (source, target) if source.numel() < target.numel() else (target, source)
        is_in_place = block.data_ptr() == whole.data_ptr() + self._rank * block.nbytes
        return source if is_in_place else apart(source, target)

    def _check_blocks(self, part: str, block: torch.Tensor, name: str, whole: torch.Tensor) -> None:
        if block.numel() * self._size != whole.numel() or block.dtype != whole.dtype:
            raise InvalidError(
                f"{name} has {whole.numel()} elements of {whole.dtype}; expected {block.numel() * self._size} of "
                f"{block.dtype}: {block.numel()}, as {part} has, for each of {self._size} ranks"
            )
