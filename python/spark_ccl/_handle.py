"""The handle of the C interface, which a communicator and its calls share; it ends with the last of
these."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref
from typing import Any

from . import _library
from ._library import Options, Request, Setting
from .groups import keep_in_group
from .work import Work


class Handle:
    """A communicator of the C interface."""

    # Here: when Python ends, modules may be gone before their objects.
    _destroy = _library.FUNCTIONS["comm_destroy"]

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        self.pointer = pointer

    def __del__(self) -> None:
        # Nobody is there to be told of a failure: a parent's handle in a forked child, for
        # instance.
        self._destroy(self.pointer)

    def run(
        self,
        function: str,
        *arguments: Any,
        keep: tuple[Any, ...],
        name: str | None,
        factor: Any = None,
        timeout: float | None = None,
        async_op: bool,
    ) -> Work | None:
        """Makes a call, or starts it and returns its `Work`.

        `keep` must live until it is done. `timeout` is how many seconds it may take, if not the
        communicator's timeout.
        """
        if not async_op:
            keep_in_group((self, *keep))
            if name is None and factor is None and timeout is None:
                _library.call(function, self.pointer, *arguments, None)
                return None
        options = Options(struct_size=ctypes.sizeof(Options))
        options.timeout = milliseconds(timeout)
        options.name = None if name is None else name.encode()
        options.factor = None if factor is None else ctypes.cast(factor, ctypes.c_void_p)
        if not async_op:
            _library.call(function, self.pointer, *arguments, byref(options))
            return None

        def begin(request: Request) -> None:
            options.request = ctypes.pointer(request)
            _library.call(function, self.pointer, *arguments, byref(options))

        # The communicator stays until its calls are done.
        return Work._start((self, *keep), begin)

    def enqueue(
        self,
        function: str,
        *arguments: Any,
        stream: int,
        factor: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Enqueues a call on device memory in a CUDA stream, or in the open group. Nothing is kept
        alive."""
        options = Options(struct_size=ctypes.sizeof(Options), stream=stream, on_device=1)
        options.timeout = milliseconds(timeout)
        options.factor = None if factor is None else ctypes.cast(factor, ctypes.c_void_p)
        _library.call(function, self.pointer, *arguments, byref(options))


def made(function: str, *arguments: Any) -> Handle | None:
    """The communicator that a function makes; `None` if it makes none for this rank."""
    pointer = ctypes.c_void_p()
    _library.call(function, *arguments, byref(pointer))
    return Handle(pointer) if pointer.value else None


def milliseconds(seconds: float | None) -> int:
    """A time for C's options; 0 for none."""
    return 0 if seconds is None else max(1, round(seconds * 1000))


def settings_of(settings: dict[str, str]) -> tuple[ctypes.Array[Setting], int]:
    """The settings for C."""
    raw = [Setting(name.encode(), str(value).encode()) for name, value in settings.items()]
    return (Setting * len(raw))(*raw), len(raw)


def counts_of(counts: Sequence[int]) -> ctypes.Array[ctypes.c_size_t]:
    """Counts for C."""
    return (ctypes.c_size_t * len(counts))(*counts)
