"""The objects by which PyTorch waits for calls."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ..errors import Error, TimedOutError
from .versions import KEEPS_WORKS

# Seconds between two polls of a wait with a time of its own.
LOOK_EVERY = 0.000_2
# Seconds that the end of a group waits for its calls, and then for their futures.
END_WITHIN = 1.0


# Works that C++ may wait for, in versions where it does not keep their Python part itself.
_kept: set[Work] = set()


class Started(Protocol):
    """A call of the library, or an expected message."""

    def wait(self) -> None: ...

    def test(self) -> bool: ...


class Work(dist.Work):
    """A call: the library's calls that were started for it, and the function to call after them."""

    is_message = False

    def __init__(
        self,
        started: Sequence[Started],
        result: list[torch.Tensor],
        futures: Futures,
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._started = started
        self._result = result
        self._futures = futures
        self._finish = finish
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        if not KEEPS_WORKS:
            _kept.add(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the call is done; raises its error."""
        if timeout is not None and timeout > timedelta(0):
            self._wait_at_most(timeout)
        try:
            for work in self._started:
                work.wait()
        except Error as failure:
            self._failure = failure
            raise
        finally:
            _kept.discard(self)
        self._end()
        if self._failure is not None:
            raise self._failure
        return True

    def is_completed(self) -> bool:
        """Whether the call is done, also if it has failed."""
        try:
            if not all([work.test() for work in self._started]):
                return False
        except Error as failure:
            self._failure = failure
        else:
            self._end()
        return True

    def is_success(self) -> bool:
        """Whether the call is done, and has not failed."""
        return self.is_completed() and self._failure is None

    def exception(self) -> BaseException | None:
        """Why the call has failed; `None` if it has not, or not yet."""
        self.is_completed()
        return self._failure

    def synchronize(self) -> None:
        """Waits."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The received or reduced tensors."""
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that is set when the call is done."""
        _kept.discard(self)
        return self._futures.of(self)

    def _wait_at_most(self, timeout: timedelta) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.is_completed():
            if time.monotonic() >= deadline:
                raise TimedOutError(f"the call is not done after {timeout.total_seconds()} s")
            time.sleep(LOOK_EVERY)

    def _end(self) -> None:
        with self._lock:
            if self._finish is None:
                return
            try:
                # Autograd must not record its copies, and this may be another thread than that of
                # the call.
                with torch.inference_mode():
                    self._finish()
            except Exception as failure:
                self._failure = failure
            # Last: after an interrupt, the next wait does it again.
            self._finish = None


class Futures:
    """Sets futures. Collective calls are waited for in their order, by one thread at a time.

    That thread hands over before it sets a future, if others are requested: a callback may wait
    for them.
    """

    def __init__(self) -> None:
        self._asked: collections.deque[tuple[Work, torch.futures.Future[Any]]] = collections.deque()
        self._threads: list[threading.Thread] = []
        # Held to read or change this state.
        self._changed = threading.Condition()
        self._is_attended = False
        self._idle = 0
        self._is_closed = False

    def of(self, work: Work) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        with self._changed:
            if work.is_message:
                # It may wait for long, and futures of collective calls must not wait with it.
                self._start(_set, work, future)
            else:
                self._asked.append((work, future))
                self._call()
        return future

    def close(self) -> None:
        """Ends the threads once they have set all requested futures, and waits for that for a
        moment."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            threads = self._threads
        deadline = time.monotonic() + END_WITHIN
        for thread in threads:
            # A callback may end the group.
            if thread is not threading.current_thread():
                # The end of Python would cut it off.
                thread.join(max(0, deadline - time.monotonic()))

    def _call(self) -> None:
        """Starts a thread for the requested futures, if there is none."""
        if self._is_attended or not self._asked:
            return
        if self._idle > 0:
            self._changed.notify()
        else:
            self._start(self._attend)

    def _attend(self) -> None:
        while (asked := self._next()) is not None:
            work, future = asked
            # `_set` sees its result.
            with contextlib.suppress(Exception):
                work.wait()
            with self._changed:
                self._is_attended = False
                self._call()
            _set(work, future)

    def _next(self) -> tuple[Work, torch.futures.Future[Any]] | None:
        """The next future for this thread to set; `None` at the end."""
        with self._changed:
            while self._is_attended or not self._asked:
                if self._is_closed:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            self._is_attended = True
            return self._asked.popleft()

    def _start(self, function: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, name="spark-ccl", daemon=True)
        thread.start()
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]


def _set(work: Work, future: torch.futures.Future[Any]) -> None:
    try:
        work.wait()
    except Exception as failure:
        future.set_exception(failure)
    else:
        future.set_result(work._result)
