"""Divides the calls of a group by the place of their tensors: the CPU, or the GPU of this rank."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from ..errors import InvalidError
from .calls import Calls
from .devices import DeviceCalls
from .handed import connect
from .options import limit_of
from .tensors import check_has_memory

# The calls that take tensors, by all their names.
_NAMES = [name for name in dir(Calls) if not name.startswith("_") and name not in ("barrier", "monitored_barrier")]
_NAMES += ["_allgather_base", "_reduce_scatter_base"]


class Gpu:
    """This rank's GPU in a group. The ranks connect their GPUs at its first use."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.calls: DeviceCalls | None = None
        self.timeout = timeout
        self._store = store
        self._place = (rank, size)
        # The ranks meet once, whichever threads call first.
        self._meeting = threading.Lock()

    def on(self, device: torch.device) -> DeviceCalls:
        """The object that makes the calls on this GPU."""
        index = torch.cuda.current_device() if device.index is None else device.index
        if self.calls is None:
            # The program's own device stays the current one.
            with self._meeting, torch.cuda.device(index):
                if self.calls is None:
                    self.calls = connect(self._store, *self._place, self.timeout, torch.device("cuda", index))
        if self.calls.device.index != index:
            raise InvalidError(
                f"the tensor is on cuda:{index}, and the calls of rank {self._place[0]} are on {self.calls.device}: a "
                "group has one GPU for each rank"
            )
        return self.calls


class CallsByDevice(Calls):
    """The calls of a group, by the place of their tensors. Calls on the CPU are its own."""

    _gpu: Gpu

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Connects this rank's GPU to those of the others; all ranks call this."""
        self._gpu.on(device)

    def barrier(self, opts: Any = None) -> Any:
        """Waits for the work in the streams of this rank's GPU, and then for all ranks."""
        if self._gpu.calls is not None:
            self._gpu.calls.wait_for_all(limit_of(opts))
        return super().barrier(opts)

    def _start_coalescing(self, device: torch.device) -> None:
        if device.type == "cuda":
            self._gpu.on(device).open_batch()

    def _end_coalescing(self, device: torch.device) -> Any:
        return self._gpu.on(device).close_batch() if device.type == "cuda" else None

    def _calls_for(self, arguments: Sequence[Any]) -> DeviceCalls | None:
        """The object for a call on a GPU; `None` for a call on the CPU."""
        tensor = _first_of(arguments)
        if tensor is None or tensor.is_cpu:
            return None
        check_has_memory(tensor, "the tensor")
        return self._gpu.on(tensor.device)


def _first_of(given: Any) -> torch.Tensor | None:
    """The first tensor in nested lists."""
    if isinstance(given, torch.Tensor):
        return given
    if isinstance(given, (tuple, list)):
        for one in given:
            if (found := _first_of(one)) is not None:
                return found
    return None


def _awaited(given: Any) -> Any:
    """The same, with results of functional collectives replaced by the tensors that they fill:
    these have memory."""
    if isinstance(given, AsyncCollectiveTensor):
        return given.trigger_wait()
    if isinstance(given, (tuple, list)):
        return [_awaited(one) for one in given]
    return given


def _by_device(name: str) -> Callable[..., Any]:
    on_host = getattr(Calls, name)

    def call(self: CallsByDevice, *arguments: Any, **options: Any) -> Any:
        arguments = _awaited(arguments)
        on_device = self._calls_for(arguments)
        if on_device is None:
            # Another rank may wait for a message from this one before it makes the same call.
            if self._gpu.calls is not None:
                self._gpu.calls.flush()
            return on_host(self, *arguments, **options)
        return getattr(on_device, name)(*arguments, **options)

    call.__name__ = name
    call.__doc__ = on_host.__doc__
    return call


for _name in _NAMES:
    setattr(CallsByDevice, _name, _by_device(_name))
