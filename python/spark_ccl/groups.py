"""Calls that run at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from . import _library


class _Open(threading.local):
    """The open groups of a thread, and the objects that their calls use."""

    depth = 0
    used: list[Any]


_open = _Open()


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Runs the calls that this thread makes within it at the same time; the end of the outermost
    group waits for them.

    It raises the first failure. An exception within it comes out when the calls that have begun are
    done, or have timed out: they use their buffers until then. Calls with `async_op=True` do not
    belong to the group.

    >>> import spark_ccl
    >>> with spark_ccl.Communicator(spark_ccl.UniqueId(), rank=0, size=1) as comm:
    ...     received = bytearray(2)
    ...     with spark_ccl.group():
    ...         comm.send(b"ab", to=0)
    ...         comm.recv(received, source=0)
    ...     received
    bytearray(b'ab')
    """
    _library.call("group_start")
    if _open.depth == 0:
        _open.used = []
    _open.depth += 1
    try:
        yield
    except BaseException:
        # Raises the error at hand; a second one would hide it.
        _end()
        raise
    _library.check(_end())


def keep_in_group(used: tuple[Any, ...]) -> None:
    """Keeps the objects that a call uses until the group of this thread ends, if one is open."""
    if _open.depth > 0:
        _open.used.append(used)


def _end() -> int:
    result: int = _library.FUNCTIONS["group_end"]()
    _open.depth -= 1
    if _open.depth == 0:
        _open.used.clear()
    return result
