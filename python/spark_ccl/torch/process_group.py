"""Makes, splits and ends process groups of PyTorch. Their calls are in `calls.py`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as _Backend
from torch._C._distributed_c10d import PrefixStore

from .._handle import Handle
from ..communicator import Communicator
from ..errors import InvalidError
from ..work import in_flight
from .by_device import CallsByDevice, Gpu
from .devices import ABORTED
from .options import LONGEST
from .rendezvous import NAME, meet
from .tagged import TaggedMessages
from .versions import HAS_BACKENDS, TELLS_OF_END
from .work import END_WITHIN, LOOK_EVERY, Futures

# PyTorch's name for the default backend of a group whose backends all come from other packages.
_ALONE = "custom"


def create(given: Any, options: Any) -> ProcessGroup | PartOfGroup:
    """Connects the ranks that share the store."""
    # In versions where it cannot be one of several, the group has no other backend, whatever was
    # asked for; tensors elsewhere are refused.
    alone = not HAS_BACKENDS or given.process_group.name() == _ALONE
    timeout = min(given.timeout, LONGEST)
    communicator = meet(given.store, given.group_rank, given.group_size, timeout)
    tagged = _tagged_messages_of(communicator)
    if alone:
        return ProcessGroup(communicator, tagged, timeout, given.store)
    return PartOfGroup(communicator, tagged, timeout, given.store)


def _tagged_messages_of(communicator: Communicator) -> TaggedMessages:
    """The tagged messages of the ranks of a communicator; all of them call this."""
    tagged = communicator.split(0, communicator.rank)
    assert tagged is not None, "every rank is in it"
    return TaggedMessages(communicator, tagged)


class _Group(CallsByDevice):
    """A communicator, and PyTorch's operations on it as a whole."""

    # PyTorch asks for `eager_connect_single_device` of backends that can be split.
    supports_splitting = True
    # If one is missing here, PyTorch 2.15 looks for it without end.
    supports_coalescing = supports_shrinking = supports_reconfigure = supports_window = False
    _supports_time_estimate = False

    def _hold(
        self,
        communicator: Communicator,
        tagged: TaggedMessages,
        timeout: timedelta,
        store: Any,
    ) -> None:
        self._communicator = communicator
        self._tagged = tagged
        self._rank = communicator.rank
        self._size = communicator.size
        self._timeout = timeout
        self._futures = Futures()
        self._gpu = Gpu(store, communicator.rank, communicator.size, timeout)

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return NAME

    def _part(self, ranks: Sequence[int]) -> Communicator | None:
        """The communicator of these ranks, in this order; all ranks of the group call this."""
        if self._rank not in ranks:
            return self._communicator.split(None)
        return self._communicator.split(ranks[0], ranks.index(self._rank))

    def set_timeout(self, timeout: timedelta) -> None:
        timeout = min(timeout, LONGEST)
        self._timeout = self._gpu.timeout = timeout
        if self._gpu.calls is not None:
            self._gpu.calls.set_timeout(timeout)
        for communicator in self._communicators():
            communicator.set_timeout(timeout.total_seconds())

    def abort(self) -> None:
        for communicator in (self._communicator, self._tagged.tagged):
            if communicator._held is not None:
                communicator.abort(ABORTED)
        if self._gpu.calls is not None:
            self._gpu.calls.abort()

    def shutdown(self) -> None:
        self._tagged.close()
        if self._gpu.calls is not None:
            self._gpu.calls.close()
        for communicator in self._communicators():
            _end_calls(communicator)
        self._futures.close()
        for communicator in self._communicators():
            communicator.leave()

    def _communicators(self) -> list[Communicator]:
        of_device = [] if self._gpu.calls is None else [self._gpu.calls.communicator]
        return [self._communicator, self._tagged.tagged, *of_device]


def _end_calls(communicator: Communicator) -> None:
    """Waits a moment for the calls of a communicator, then aborts those that are not done."""
    handle = communicator._held
    if handle is not None and not _done_soon(handle):
        # They would keep the handle, and the other ranks would wait for them until their time is
        # over.
        communicator.abort("the process group was destroyed before its calls were done")
        in_flight.has_calls_of(handle)


def _done_soon(handle: Handle) -> bool:
    """Whether all calls of a group end within a moment."""
    deadline = time.monotonic() + END_WITHIN
    while in_flight.has_calls_of(handle):
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_EVERY)
    return True


class ProcessGroup(_Group, dist.ProcessGroup):
    """A group with `spark_ccl` as its only backend. Calls do not go through PyTorch's C++."""

    def __init__(
        self,
        communicator: Communicator,
        tagged: TaggedMessages,
        timeout: timedelta,
        store: Any,
    ) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._hold(communicator, tagged, timeout, store)
        self._store = store
        self._name = self._description = "undefined"
        if HAS_BACKENDS:
            # Answers what PyTorch asks of the backend, not of the group.
            self._set_default_backend(self.BackendType.CUSTOM)
            part = PartOfGroup(communicator, tagged, timeout, store)
            part._gpu = self._gpu
            for device in self._device_types:
                self._register_backend(device, self.BackendType.CUSTOM, part)

    if not HAS_BACKENDS:

        def _get_backend(self, device: torch.device) -> ProcessGroup:
            return self

    if not TELLS_OF_END:

        def __del__(self) -> None:
            with contextlib.suppress(Exception):
                self.shutdown()

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        communicator = self._part(ranks)
        if communicator is None:
            return None
        part = ProcessGroup(
            communicator,
            _tagged_messages_of(communicator),
            self._timeout,
            PrefixStore(f"{group_name}/", self._store),
        )
        part.set_timeout(timeout or self._timeout)
        part.setGroupName(group_name or "undefined")
        part.setGroupDesc(group_desc or "undefined")
        return part

    def get_group_store(self) -> Any:
        return self._store

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    # The names that Python uses.

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)


class PartOfGroup(_Group, _Backend):
    """A backend of a group that has others: `"cpu:spark_ccl,cuda:nccl"`."""

    def __init__(
        self,
        communicator: Communicator,
        tagged: TaggedMessages,
        timeout: timedelta,
        store: Any,
    ) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._hold(communicator, tagged, timeout, store)

    @property
    def options(self) -> Any:
        return _Backend.Options(NAME, self._timeout)

    def split(self, store: Any, ranks: Sequence[int], options: Any) -> PartOfGroup:
        communicator = self._part(ranks)
        if communicator is None:
            # PyTorch 2.15 would not survive `None`.
            raise InvalidError("a group with several backends is split so that this rank is in no part; use new_group")
        part = PartOfGroup(communicator, _tagged_messages_of(communicator), self._timeout, store)
        part.set_timeout(options._timeout)
        return part
