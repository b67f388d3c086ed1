"""Communicators: how they begin and end. Their calls are in `collectives.py`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import TracebackType

from . import _library
from ._handle import Handle, made, settings_of
from .collectives import Collectives
from .errors import InvalidError
from .unique_id import UniqueId


class Communicator(Collectives):
    """The ranks that communicate, and this process's rank.

    All ranks make the same calls in the same order. Use it in a `with` statement: its end waits for
    all ranks, and an exception makes the other ranks fail instead of wait.

    >>> import spark_ccl
    >>> with spark_ccl.Communicator(spark_ccl.UniqueId(), rank=0, size=1) as comm:
    ...     values = bytearray(b"ab")
    ...     comm.all_reduce(values)
    ...     values
    bytearray(b'ab')
    """

    def __init__(self, unique_id: UniqueId, rank: int, size: int, **settings: str) -> None:
        """Joins the `size` ranks that share `unique_id`; returns when all have come.

        `settings` are the variables of docs/environment.md without their prefix, in lower case:
        `progress_thread="1"`.
        """
        values, count = settings_of(_names(settings))
        place = (_library.int_of(rank, "rank"), _library.int_of(size, "size"))
        self._open(made("comm_create", ctypes.byref(unique_id._raw), *place, values, count))

    @classmethod
    def from_env(cls, **settings: str) -> Communicator:
        """Joins the ranks that a launcher has started: torchrun, mpirun, srun, or one that sets
        `SPARK_CCL_RANK`."""
        values, count = settings_of(_names(settings))
        return cls._of(made("comm_from_env", values, count))

    @classmethod
    def _of(cls, handle: Handle | None) -> Communicator:
        communicator = cls.__new__(cls)
        communicator._open(handle)
        return communicator

    def _open(self, handle: Handle | None) -> None:
        assert handle is not None, "only a split makes no communicator"
        self._held: Handle | None = handle
        self._rank = _library.read_int("comm_rank", handle.pointer)
        self._size = _library.read_int("comm_size", handle.pointer)

    @property
    def rank(self) -> int:
        """This rank's number, 0 to `size` - 1."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Makes a communicator of the ranks that pass the same color, in the order of `key`; none
        for `None`."""
        if color is not None and color < 0:
            raise InvalidError(f"the color is {color}; expected 0 or more, or None")
        part = -1 if color is None else _library.int_of(color, "the color")
        handle = made("comm_split", self._handle.pointer, part, _library.int_of(key, "the key"))
        return None if handle is None else Communicator._of(handle)

    def recover(self) -> Communicator:
        """Makes a communicator of the remaining ranks after a failure.

        They agree on which ranks to leave out: dead, lost and stopped ones. A rank that is left
        out gets a `RemoteError`.
        """
        return Communicator._of(made("comm_recover", self._handle.pointer))

    def shrink(self, lost: Sequence[int] = ()) -> Communicator:
        """Makes a communicator of the remaining ranks after a failure, without those that the
        program names.

        Dead ranks are left out in any case; `lost` names others, the same ones on all ranks.
        """
        ranks = (ctypes.c_int * len(lost))(*(_library.int_of(rank, "a lost rank") for rank in lost))
        return Communicator._of(made("comm_shrink", self._handle.pointer, ranks, len(lost)))

    def set_timeout(self, seconds: float) -> None:
        """Sets how long each later call may take."""
        # Also if it is no number.
        if not 0.001 <= seconds < (1 << 32) / 1000:
            raise InvalidError(f"the timeout is {seconds} s; expected 0.001 s to 49 days")
        _library.call("comm_set_timeout", self._handle.pointer, round(seconds * 1000))

    def check(self) -> None:
        """Raises the error of a communicator that has failed; does nothing while it works."""
        _library.call("comm_check", self._handle.pointer)

    def abort(self, reason: str) -> None:
        """Makes the communicator fail on all ranks: their calls raise `RemoteError` with the
        reason. Does not wait."""
        _library.call("comm_abort", self._handle.pointer, reason.encode())

    def close(self) -> None:
        """Ends the communicator: waits until all ranks have called this and all calls are done.
        Does nothing if closed."""
        handle, self._held = self._held, None
        if handle is not None:
            _library.call("comm_finalize", handle.pointer)

    def leave(self) -> None:
        """Leaves without waiting for the other ranks; `RemoteError` is raised on those that still
        need this one.

        Calls that were started go on. Does nothing if closed.
        """
        self._held = None

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._held is not None:
            handle, self._held = self._held, None
            # Raises the error at hand; a second one would hide it.
            reason = f"{type(error).__name__}: {error}"
            _library.FUNCTIONS["comm_abort"](handle.pointer, reason.encode())

    @property
    def _handle(self) -> Handle:
        if self._held is None:
            raise InvalidError("the communicator is closed")
        return self._held


def _names(settings: dict[str, str]) -> dict[str, str]:
    return {f"SPARK_CCL_{name.upper()}": value for name, value in settings.items()}
