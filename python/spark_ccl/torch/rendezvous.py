"""Connects the ranks of a group, through the store of PyTorch that they share."""

from __future__ import annotations

import os
import secrets
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from ..communicator import Communicator
from ..errors import TimedOutError
from ..unique_id import UniqueId

NAME = "spark_ccl"


def meet(store: Any, rank: int, size: int, timeout: timedelta, **settings: str) -> Communicator:
    """The communicator of the ranks that share the store; raises `TimedOutError`, which names the
    late ranks."""
    # torchrun's store is the same after a restart.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"{NAME}/{attempt}", store)
    # Rank 0's id serves the meeting, and so lives until all have met.
    unique_id = _send_id(store, size, timeout) if rank == 0 else _receive_id(store, rank, timeout)
    seconds = str(timeout.total_seconds())
    # Memory of GPUs has another communicator.
    settings = {"backend": "host", "timeout": seconds, "init_timeout": seconds, "progress_thread": "1", **settings}
    return Communicator(unique_id, rank, size, **settings)


def meet_on_device(store: Any, rank: int, size: int, timeout: timedelta, index: int) -> Communicator:
    """The same, for memory of this rank's GPU. Ranks may have GPUs of different numbers."""
    chosen = os.environ.get("SPARK_CCL_BACKEND", "host")
    backend = "auto" if chosen.lower() in ("", "host") else chosen
    return meet(PrefixStore("devices", store), rank, size, timeout, backend=backend, device=str(index))


def _send_id(store: Any, size: int, timeout: timedelta) -> UniqueId:
    ranks = [f"rank_{rank}" for rank in range(1, size)]
    # The id is good for SPARK_CCL_INIT_TIMEOUT, and ranks may start later than that.
    _wait_for_ranks(store, ranks, timeout)
    places = [store.get(rank).decode() for rank in ranks]
    for rank in ranks:
        store.delete_key(rank)
    unique_id = UniqueId()
    for place in places:
        store.set(place, str(unique_id))
    return unique_id


def _wait_for_ranks(store: Any, ranks: list[str], timeout: timedelta) -> None:
    try:
        store.wait(ranks, timeout)
    except RuntimeError as failure:
        late = [number for number, rank in enumerate(ranks, 1) if not store.check([rank])]
        if not late:
            raise
        raise TimedOutError(
            f"rank 0 gave up after {timeout.total_seconds()} s: of {len(ranks) + 1} ranks, these have not come to the "
            f"process group: {', '.join(f'rank {number}' for number in late)}; see why they did not start, or give "
            "init_process_group a longer timeout"
        ) from failure


def _receive_id(store: Any, rank: int, timeout: timedelta) -> UniqueId:
    # With the same name, a group that is made anew would get the id of the one that has ended.
    place = f"for_rank_{rank}_{secrets.token_hex(8)}"
    store.set(f"rank_{rank}", place)
    try:
        store.wait([place], timeout)
    except RuntimeError as failure:
        # Raises if the store itself is lost.
        if store.check([place]):
            raise
        raise TimedOutError(
            f"rank {rank} gave up after {timeout.total_seconds()} s: rank 0 has not sent the id of the process group; "
            "it has not come, or waits for other ranks, which its own error names"
        ) from failure
    unique_id = UniqueId.parse(store.get(place).decode())
    store.delete_key(place)
    return unique_id
