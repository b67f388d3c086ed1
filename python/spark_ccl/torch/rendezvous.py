"""Connects the ranks of a group, through the store of PyTorch that they share."""

from __future__ import annotations

import hashlib
import os
import secrets
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from ..communicator import Communicator
from ..errors import TimedOutError
from ..unique_id import UniqueId

NAME = "spark_ccl"


def meet(store: Any, rank: int, size: int, timeout: timedelta) -> Communicator:
    """The communicator of the ranks that share the store; raises `TimedOutError`, which names the
    late ranks."""
    unique_id, _ = _agree(_of_attempt(store), rank, size, timeout, "")
    # Memory of GPUs has another communicator.
    return _join(unique_id, rank, size, timeout, "host")


def meet_on_device(
    store: Any, rank: int, size: int, timeout: timedelta, index: int, word: str, serves: bool
) -> tuple[Communicator, Any, list[str]]:
    """The same, for memory of this rank's GPU, with a store of its own, and the words of all ranks.
    Ranks may have GPUs of different numbers. `serves`: PyTorch's NCCL is this package's library.
    """
    store = _of_attempt(PrefixStore("devices", store))
    unique_id, words = _agree(store, rank, size, timeout, f"{serves:d}{word}")
    backend = os.environ.get("SPARK_CCL_BACKEND", "").lower()
    if backend in ("", "auto", "host"):
        # Not NCCL where it would find this library in its place.
        backend = "engine" if any(word.startswith("1") for word in words) else "auto"
    communicator = _join(unique_id, rank, size, timeout, backend, device=str(index))
    # With the same names, a group that is made anew would find what the one before has left.
    own = hashlib.sha256(str(unique_id).encode()).hexdigest()[:16]
    return communicator, PrefixStore(own, store), [word[1:] for word in words]


def _of_attempt(store: Any) -> Any:
    # torchrun's store is the same after a restart.
    return PrefixStore(f"{NAME}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _join(unique_id: UniqueId, rank: int, size: int, timeout: timedelta, backend: str, **settings: str) -> Communicator:
    seconds = str(timeout.total_seconds())
    settings.update(backend=backend, timeout=seconds, init_timeout=seconds, progress_thread="1")
    return Communicator(unique_id, rank, size, **settings)


def _agree(store: Any, rank: int, size: int, timeout: timedelta, word: str) -> tuple[UniqueId, list[str]]:
    """The ranks' common id, and the words of all."""
    # Rank 0's id serves the meeting, and so lives until all have met.
    return _send_id(store, size, timeout, word) if rank == 0 else _receive_id(store, rank, timeout, word)


def _send_id(store: Any, size: int, timeout: timedelta, word: str) -> tuple[UniqueId, list[str]]:
    ranks = [f"rank_{rank}" for rank in range(1, size)]
    # The id is good for SPARK_CCL_INIT_TIMEOUT, and ranks may start later than that.
    _wait_for_ranks(store, ranks, timeout)
    told = [store.get(rank).decode().partition("\n") for rank in ranks]
    for rank in ranks:
        store.delete_key(rank)
    unique_id = UniqueId()
    words = [word, *[word for _, _, word in told]]
    for place, _, _ in told:
        store.set(place, "\n".join([str(unique_id), *words]))
    return unique_id, words


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


def _receive_id(store: Any, rank: int, timeout: timedelta, word: str) -> tuple[UniqueId, list[str]]:
    # With the same name, a group that is made anew would get the id of the one that has ended.
    place = f"for_rank_{rank}_{secrets.token_hex(8)}"
    store.set(f"rank_{rank}", f"{place}\n{word}")
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
    unique_id, *words = store.get(place).decode().split("\n")
    store.delete_key(place)
    return UniqueId.parse(unique_id), words
