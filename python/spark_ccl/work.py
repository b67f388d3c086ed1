"""Calls that were started and are waited for later."""

from __future__ import annotations

import collections
import ctypes
import threading
from collections.abc import Callable
from typing import Any

from . import _library
from .errors import Error


class Work:
    """A call that was started. Its buffers are in use, and kept alive, until it is done.

    A call goes on even if its `Work` is dropped. It makes progress while this process waits or
    tests in any call of the library; with the setting `PROGRESS_THREAD=1` also by itself. Any
    thread may use a `Work`.
    """

    def __init__(self, buffers: tuple[Any, ...]) -> None:
        self._request = _library.Request()
        # None once the call is done.
        self._buffers: tuple[Any, ...] | None = buffers
        self._lock = threading.Lock()
        self._failure: Exception | None = None

    @classmethod
    def _start(cls, buffers: tuple[Any, ...], begin: Callable[[_library.Request], None]) -> Work:
        """Starts a call by `begin`, which sets the request."""
        work = cls(buffers)
        # Before it begins: an interrupt may come in between. The lock keeps others from taking it
        # for done.
        with work._lock:
            in_flight.add(work)
            begin(work._request)
        return work

    def wait(self) -> None:
        """Waits until the call is done; raises its error, each time."""
        with self._lock:
            self._end_if_interrupted()
            if self._buffers is not None:
                self._finish(_library.FUNCTIONS["wait"](ctypes.byref(self._request)))
            failure = self._failure
        if failure is not None:
            raise failure

    def test(self) -> bool:
        """Whether the call is done; raises if it has failed. Does not wait."""
        done = self._done()
        if self._failure is not None:
            raise self._failure
        return done

    def _done(self) -> bool:
        # Another thread waits for it.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._end_if_interrupted()
            if self._buffers is not None:
                done = ctypes.c_int()
                result = _library.FUNCTIONS["test"](ctypes.byref(self._request), ctypes.byref(done))
                if done.value:
                    self._finish(result)
            return self._buffers is None
        finally:
            self._lock.release()

    def _end_if_interrupted(self) -> None:
        # The request ends in C. If a signal handler raises then, Python never gets the result.
        if self._buffers is not None and self._request.value == 0:
            if self._failure is None:
                self._failure = Error("interrupted; what became of this call is not known")
            self._buffers = None

    def _finish(self, result: int) -> None:
        try:
            _library.check(result)
        except Error as failure:
            self._failure = failure
        # Last: an interrupt before this is found by `_end_if_interrupted`.
        self._buffers = None


class _InFlight:
    """Keeps started calls until they are done, even if the program has dropped their `Work`."""

    def __init__(self) -> None:
        self._works: collections.deque[Work] = collections.deque()

    def add(self, work: Work) -> None:
        # Each added call checks two others, so the list does not grow with calls that are done.
        self._forget_done(2)
        self._works.append(work)

    def has_calls_of(self, handle: Any) -> bool:
        """Whether a communicator's handle has calls that are not done; forgets all that are."""
        self._forget_done(len(self._works))
        # A call's communicator is the first that it keeps.
        kept = [work._buffers for work in list(self._works)]
        return any(buffers is not None and buffers[0] is handle for buffers in kept)

    def _forget_done(self, looks: int) -> None:
        for _ in range(looks):
            try:
                oldest = self._works.popleft()
            except IndexError:
                return
            if not oldest._done():
                self._works.append(oldest)


in_flight = _InFlight()
