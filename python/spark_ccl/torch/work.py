"""What PyTorch waits for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import Error, TimedOutError
from ..work import Work as Started

# Seconds between two looks of a wait with a time of its own.
LOOK_EVERY = 0.000_2
# Seconds that the end of a group waits for its calls, and then for their futures.
END_WITHIN = 1.0


class Work(dist.Work):
    """A call: those that were started for it, and what is to do when they are done."""

    def __init__(
        self,
        started: Sequence[Started],
        result: list[torch.Tensor],
        futures: Futures,
        finish: Callable[[], None] | None = None,
        is_message: bool = False,
    ) -> None:
        super().__init__()
        self.is_message = is_message
        self._started = started
        self._result = result
        self._futures = futures
        self._finish = finish
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the call is done; raises what became of it."""
        if timeout is not None and timeout > timedelta(0):
            self._wait_at_most(timeout)
        try:
            for work in self._started:
                work.wait()
        except Error as failure:
            self._failure = failure
            raise
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
        """The tensors that were received, or reduced."""
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that is set when the call is done."""
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
                # Its copies are no operations of autograd, and this may be another thread than that of the call.
                with torch.inference_mode():
                    self._finish()
            except Exception as failure:
                self._failure = failure
            # Last: after an interrupt, the next wait does it again.
            self._finish = None


class _Setting(threading.local):
    """Whether this thread sets a future, and so runs its callbacks."""

    now = False


_setting = _Setting()


class Futures:
    """Sets futures of collective calls, in their order, by a thread that blocks as long as there are none."""

    def __init__(self) -> None:
        # Of the thread; `None` if there is none that takes more.
        self._asked: queue.SimpleQueue[Any] | None = None
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def of(self, work: Work) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        with self._lock:
            if work.is_message or _setting.now:
                # A message may wait for long, and those of collective calls must not wait with it. And a callback may
                # wait for this future, but is itself run by the thread that sets the others.
                self._start(_set, work, future)
                return future
            if self._asked is None:
                self._asked = queue.SimpleQueue()
                self._start(_set_all, self._asked)
            self._asked.put((work, future))
        return future

    def close(self) -> None:
        """Ends the threads when they have set all that were asked for, and waits for that for a moment."""
        with self._lock:
            asked, self._asked = self._asked, None
            threads = self._threads
        if asked is not None:
            asked.put(None)
        deadline = time.monotonic() + END_WITHIN
        for thread in threads:
            # A callback may end the group.
            if thread is not threading.current_thread():
                # Python's end would cut it off.
                thread.join(max(0, deadline - time.monotonic()))

    def _start(self, function: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, name="spark-ccl", daemon=True)
        thread.start()
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]


def _set_all(asked: queue.SimpleQueue[Any]) -> None:
    while (next_one := asked.get()) is not None:
        _set(*next_one)


def _set(work: Work, future: torch.futures.Future[Any]) -> None:
    _setting.now = True
    try:
        work.wait()
    except Exception as failure:
        future.set_exception(failure)
    else:
        future.set_result(work._result)
    finally:
        _setting.now = False
