"""The objects by which PyTorch waits for calls in a CUDA stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from .._handle import Handle
from ..communicator import Communicator
from ..errors import Error, TimedOutError
from .versions import KEEPS_WORKS
from .work import LOOK_EVERY

# Works that C++ may wait for, in versions where it does not keep their Python part itself.
_kept: set[DeviceWork] = set()


class Owner(Protocol):
    """The owner of a device's calls."""

    device: torch.device

    def current_stream(self) -> torch.cuda.Stream: ...

    @property
    def communicator(self) -> Communicator: ...

    def flush(self) -> None: ...


class Enqueued:
    """A call to be enqueued, and the event in PyTorch's stream that it must follow."""

    def __init__(
        self,
        function: str,
        arguments: tuple[Any, ...],
        keep: Any,
        factor: Any,
        current: torch.cuda.Stream,
        is_async: bool,
        timeout: float | None,
    ) -> None:
        self.keep = keep
        self.current = current
        self.is_async = is_async
        self._call = (function, arguments, factor, timeout)
        self._before = None
        if is_async:
            self._before = torch.cuda.Event()
            self._before.record(current)

    def get_ready(self, stream: torch.cuda.Stream) -> None:
        """Makes the stream wait for the event that the call must follow."""
        if self._before is not None:
            stream.wait_event(self._before)
        elif stream is not self.current and stream != self.current:
            stream.wait_stream(self.current)

    def enqueue(self, handle: Handle, stream: torch.cuda.Stream) -> None:
        function, arguments, factor, timeout = self._call
        own = stream.cuda_stream
        handle.enqueue(function, *arguments, stream=own, factor=factor, timeout=timeout)


class DeviceWork(dist.Work):
    """Calls in a stream, and the event after them."""

    def __init__(
        self,
        owner: Owner,
        started: Sequence[Enqueued],
        results: list[torch.Tensor],
        finish: Callable[[], None] | None,
        source: int | None = None,
    ) -> None:
        super().__init__()
        self.started = started
        self.results = results
        self._owner = owner
        self._finish = finish
        self._source = source
        self._end: torch.cuda.Event | None = None
        self._stream: torch.cuda.Stream | None = None
        self._failure: Exception | None = None
        if not KEEPS_WORKS:
            _kept.add(self)

    @classmethod
    def of_all(cls, works: Sequence[DeviceWork], owner: Owner) -> DeviceWork:
        """A work for several works that were enqueued together."""
        whole = cls(owner, [], [tensor for work in works for tensor in work.results], None)
        if works:
            # They are in one stream, in this order.
            whole._end, whole._stream = works[-1]._end, works[-1]._stream
            whole._failure = next((work._failure for work in works if work._failure is not None), None)
        return whole

    @property
    def has_more(self) -> bool:
        """Whether work follows the calls."""
        return self._finish is not None

    def finish(self) -> None:
        """Enqueues the work that follows the calls."""
        if self._finish is not None:
            self._finish()
            self._finish = None

    def was_enqueued(self, end: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        self._end, self._stream = end, stream
        # PyTorch may reuse the tensors' memory once the stream has used it.
        self.started = []

    def fail(self, failure: Exception) -> None:
        """Notes that the calls could not be enqueued."""
        self._failure = failure
        self.started = []
        _kept.discard(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Makes the current stream wait; with a time, the caller waits. Raises if the communicator
        has failed, or the calls could not be enqueued."""
        if timeout is not None and timeout > timedelta(0):
            self._wait_at_most(timeout)
        self._enqueue()
        if self._end is not None:
            current = self._owner.current_stream()
            # In the call's own stream, what comes later waits anyway.
            if current is not self._stream:
                current.wait_event(self._end)
        _kept.discard(self)
        self._check()
        return True

    def synchronize(self) -> None:
        """Like `wait` without a timeout."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the call has run, also if it has failed. Does not wait."""
        if self._failure is not None:
            return True
        try:
            self._enqueue()
            done = self._end is None or self._end.query()
            self._check()
        except Error as failure:
            self._failure = failure
            return True
        return done

    def is_success(self) -> bool:
        """Whether the call has run, and the communicator works."""
        return self.is_completed() and self._failure is None

    def exception(self) -> BaseException | None:
        """Why the communicator has failed; `None` if it has not, or not yet."""
        self.is_completed()
        return self._failure

    def result(self) -> list[torch.Tensor]:
        """The received or reduced tensors."""
        self.wait()
        return self.results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A completed future: code that waits for it does so in its own stream."""
        self._enqueue()
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=[self._owner.device])
        stream = self._stream or self._owner.current_stream()
        with torch.cuda.stream(stream):
            future.set_result(self.results)
        _kept.discard(self)
        return future

    def _source_rank(self) -> int:
        """The rank that sent the message."""
        if self._source is None:
            raise RuntimeError("there is no source: this call sends")
        return self._source

    def _enqueue(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._end is None:
            self._owner.flush()

    def _check(self) -> None:
        try:
            self._owner.communicator.check()
        except Error as failure:
            self._failure = failure
            raise

    def _wait_at_most(self, timeout: timedelta) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.is_completed():
            if time.monotonic() >= deadline:
                raise TimedOutError(f"the call has not run after {timeout.total_seconds()} s")
            time.sleep(LOOK_EVERY)
