"""Process groups of PyTorch: how they are made, split and ended. Their calls are in `calls.py`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as _Backend
from torch._C._distributed_c10d import PrefixStore

from ..communicator import Communicator
from ..errors import InvalidError
from ..unique_id import UniqueId
from .calls import Calls
from .work import Futures

NAME = "spark_ccl"
# What PyTorch calls the default backend of a group whose backends are all of other packages.
_ALONE = "custom"
if not hasattr(_Backend, "reconfigure"):
    raise ImportError(f"spark_ccl.torch needs PyTorch 2.15 or newer, and this is {torch.__version__}")


def create(given: Any, options: Any) -> ProcessGroup | PartOfGroup:
    """Meets the ranks that share the store."""
    alone = given.process_group.name() == _ALONE
    timeout = given.timeout
    communicator = _meet(given.store, given.group_rank, given.group_size, timeout)
    return ProcessGroup(communicator, timeout, given.store) if alone else PartOfGroup(communicator, timeout)


def _meet(store: Any, rank: int, size: int, timeout: timedelta) -> Communicator:
    # torchrun's store is the same after a restart.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"{NAME}/{attempt}", store)
    # That of rank 0 serves the meeting, and so lives until all have met.
    unique_id = _send_id(store, size, timeout) if rank == 0 else _receive_id(store, rank, timeout)
    seconds = str(timeout.total_seconds())
    return Communicator(unique_id, rank, size, timeout=seconds, init_timeout=seconds, progress_thread="1")


def _send_id(store: Any, size: int, timeout: timedelta) -> UniqueId:
    ranks = [f"rank_{rank}" for rank in range(1, size)]
    # The id is good for SPARK_CCL_INIT_TIMEOUT, and ranks may start later than that.
    store.wait(ranks, timeout)
    places = [store.get(rank).decode() for rank in ranks]
    for rank in ranks:
        store.delete_key(rank)
    unique_id = UniqueId()
    for place in places:
        store.set(place, str(unique_id))
    return unique_id


def _receive_id(store: Any, rank: int, timeout: timedelta) -> UniqueId:
    # The same name would have the id of a group that has ended, where one is made anew.
    place = f"for_rank_{rank}_{secrets.token_hex(8)}"
    store.set(f"rank_{rank}", place)
    store.wait([place], timeout)
    unique_id = UniqueId.parse(store.get(place).decode())
    store.delete_key(place)
    return unique_id


class _Group(Calls):
    """A communicator, and what PyTorch does with it as a whole."""

    def _hold(self, communicator: Communicator, timeout: timedelta) -> None:
        self._communicator = communicator
        self._rank = communicator.rank
        self._size = communicator.size
        self._timeout = timeout
        self._futures = Futures()

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
        self._timeout = timeout
        self._communicator.set_timeout(timeout.total_seconds())

    def abort(self) -> None:
        self._communicator.abort("the process group was aborted")

    def shutdown(self) -> None:
        self._futures.close()
        self._communicator.leave()


class ProcessGroup(_Group, dist.ProcessGroup):
    """A group that has no backend but `spark_ccl`. It is called without a detour through PyTorch's C++."""

    def __init__(self, communicator: Communicator, timeout: timedelta, store: Any) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._hold(communicator, timeout)
        self._store = store
        self._name = self._description = "undefined"
        # It answers what PyTorch asks not the group, but its backend.
        self._set_default_backend(self.BackendType.CUSTOM)
        self._register_backend(torch.device("cpu"), self.BackendType.CUSTOM, PartOfGroup(communicator, timeout))

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
        part = ProcessGroup(communicator, self._timeout, PrefixStore(f"{group_name}/", self._store))
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


class PartOfGroup(_Group, _Backend):
    """The backend for CPU tensors of a group that has others: `"cpu:spark_ccl,cuda:nccl"`."""

    supports_splitting = True
    # Those that are not here PyTorch 2.15 would look for without end.
    supports_coalescing = supports_shrinking = supports_reconfigure = supports_window = False
    _supports_time_estimate = False

    def __init__(self, communicator: Communicator, timeout: timedelta) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._hold(communicator, timeout)

    @property
    def options(self) -> Any:
        return _Backend.Options(NAME, self._timeout)

    def split(self, store: Any, ranks: Sequence[int], options: Any) -> PartOfGroup:
        communicator = self._part(ranks)
        if communicator is None:
            # PyTorch 2.15 would not survive `None`.
            raise InvalidError("a group with several backends is split so that this rank is in no part; use new_group")
        part = PartOfGroup(communicator, self._timeout)
        part.set_timeout(options._timeout)
        return part
