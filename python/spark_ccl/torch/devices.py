"""The calls of PyTorch on tensors of a GPU: enqueued in CUDA's streams, and ordered as those of
NCCL's backend.

A call runs after the work in PyTorch's current stream. Without `async_op` it is in that stream;
with it, in a stream of the group, and `wait` makes the current stream wait, not the program.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from .. import _library
from ..communicator import Communicator
from ..errors import Error, InvalidError, TimedOutError
from ..types import DType
from .blocks import Tensors, apart, in_order, only, split_counts
from .calls import Calls
from .delayed import Delayed
from .device_work import DeviceWork, Enqueued
from .options import is_async, seconds_of
from .tensors import check_all_on, moved, pointer, tensors_in
from .work import END_WITHIN, LOOK_EVERY

# Seconds after which messages are sent even if nothing waits for them.
SEND_AFTER = 0.02
# What the other ranks hear of an abort.
ABORTED = "the process group was aborted"


class DeviceCalls(Calls):
    """A group's calls on this rank's GPU."""

    def __init__(self, communicator: Communicator, device: torch.device, timeout: timedelta) -> None:
        self._communicator = communicator
        self._rank = communicator.rank
        self._size = communicator.size
        self._timeout = timeout
        self.device = device
        self._stream = torch.cuda.Stream(device)
        # PyTorch's current stream when it was asked last, and its handle.
        self._known: tuple[int, torch.cuda.Stream] | None = None
        # Held to enqueue: all ranks do so in the same order, and a batch belongs to one thread.
        self._order = threading.RLock()
        # Pending messages, which are sent together; and calls of an open batch.
        self._waiting: list[DeviceWork] = []
        # All calls of the open batch, also those that are already enqueued.
        self._batch: list[DeviceWork] | None = None
        self._delayed = Delayed(self._send, SEND_AFTER)
        # The end of the last enqueued work, outside graphs.
        self._last: torch.cuda.Event | None = None

    @property
    def communicator(self) -> Communicator:
        return self._communicator

    def current_stream(self) -> torch.cuda.Stream:
        """PyTorch's current stream of the GPU."""
        # PyTorch takes much longer to make its object than to tell the handle.
        handle, known = current_handle(self.device.index), self._known
        if known is not None and known[0] == handle:
            return known[1]
        stream = torch.cuda.current_stream(self.device.index)
        self._known = (handle, stream)
        return stream

    def set_timeout(self, timeout: timedelta) -> None:
        """How long the end of the group waits for calls."""
        self._timeout = timeout

    def wait_for_all(self, limit: timedelta | None = None) -> None:
        """Waits, as a barrier does, for all work in the current stream and in that of the group.

        Without a limit, it waits for calls as long as these may take.
        """
        deadline = None if limit is None else time.monotonic() + limit.total_seconds()
        self.flush()
        with torch.cuda.device(self.device):
            for stream in (self._stream, self.current_stream()):
                if deadline is not None:
                    self._wait_until(deadline, stream)
                _library.call("stream_wait", self._communicator._handle.pointer, stream.cuda_stream)

    def _wait_until(self, deadline: float, stream: torch.cuda.Stream) -> None:
        end = torch.cuda.Event()
        end.record(stream)
        while not end.query():
            self._communicator.check()
            if time.monotonic() >= deadline:
                text = f"calls on {self.device} are not done in the time of the barrier"
                raise TimedOutError(f"rank {self._rank}: {text}")
            time.sleep(LOOK_EVERY)

    def close(self) -> None:
        """Enqueues pending calls and waits for all, within the group's timeout and while the
        communicator works. Calls that have not run then are aborted when the communicator ends."""
        self._delayed.close(END_WITHIN)
        with contextlib.suppress(Error, RuntimeError):
            self.flush()
            deadline = time.monotonic() + self._timeout.total_seconds()
            while not self._has_run() and time.monotonic() < deadline:
                self._communicator.check()
                time.sleep(LOOK_EVERY)

    def abort(self) -> None:
        """Ends all calls, those of the other ranks, too."""
        if self._communicator._held is not None:
            self._communicator.abort(ABORTED)

    def _has_run(self) -> bool:
        """Whether all calls outside graphs have run."""
        return self._last is None or self._last.query()

    # Several calls as one.

    def open_batch(self) -> None:
        """Collects calls until the end of the batch, so that they start together."""
        with self._order:
            self.flush()
            self._batch = []

    def close_batch(self) -> DeviceWork:
        with self._order:
            works, self._batch = self._batch or [], None
            self.flush()
            return DeviceWork.of_all(works, self)

    def flush(self) -> None:
        """Enqueues the pending calls. If that fails, each of their works raises the error."""
        with self._order:
            works, self._waiting = self._waiting, []
            if not works:
                return
            try:
                self._launch(works, self._stream)
            except Exception as error:
                for work in works:
                    work.fail(error)
                raise

    # Messages. They are sent together: when the program waits for one of them, at the group's next
    # call, or else after a moment. Otherwise two ranks that first send and then receive would wait
    # for each other.

    def send(self, tensors: Tensors, to: int, tag: int) -> DeviceWork:
        _check_tag(tag)
        ordered = only(tensors).contiguous()
        at = pointer(ordered, "the tensor")
        started = self._start(None, "send", at, *moved(ordered), to, keep=ordered)
        return self._hold(DeviceWork(self, started, list(tensors), None))

    def recv(self, tensors: Tensors, source: int, tag: int) -> DeviceWork:
        _check_tag(tag)
        ordered, finish = in_order(only(tensors))
        at = pointer(ordered, "the tensor")
        started = self._start(None, "recv", at, *moved(ordered), source, keep=ordered)
        return self._hold(DeviceWork(self, started, list(tensors), finish, source=source))

    def recv_anysource(self, tensors: Tensors, tag: int) -> DeviceWork:
        raise InvalidError("on a GPU, messages are received from a rank that is named")

    def _hold(self, work: DeviceWork) -> DeviceWork:
        with self._order:
            self._waiting.append(work)
            if self._batch is not None:
                self._batch.append(work)
            # Calls of another thread would not be captured.
            elif not _captures():
                self._delayed.ask()
        return work

    def _send(self) -> None:
        """Enqueues the messages that nothing has waited for. A batch is enqueued at its end."""
        # Each work raises its error.
        with self._order, contextlib.suppress(Exception):
            if self._batch is None:
                self.flush()

    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> Any:
        if output_sizes or input_sizes:
            return super().all_to_all_single(output, whole, output_sizes, input_sizes, opts)
        # Equal parts on all ranks, as with NCCL's backend: each of our backends can exchange them.
        whole, count, dtype = self._equal_parts(output, whole)
        arguments = (pointer(whole, "input"), pointer(output, "output"), count, dtype)
        started = self._start(opts, "all_to_all", *arguments, keep=(output, whole))
        return self._work(started, [output])

    alltoall_base = all_to_all_single

    def _equal_parts(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
    ) -> tuple[torch.Tensor, int, DType]:
        """What is sent of `whole`, and the elements for each rank; `output` takes as many."""
        if output.dtype != whole.dtype or output.numel() != whole.numel():
            raise InvalidError(
                f"input has {whole.numel()} elements of {whole.dtype}, and output {output.numel()} of {output.dtype}"
            )
        counts, dtype = split_counts(whole, [], self._size, "input")
        return apart(whole, output), counts[0], dtype

    def _start(self, opts: Any, function: str, *arguments: Any, keep: Any, factor: Any = None) -> list[Any]:
        """The description of a call to be enqueued."""
        check_all_on(self.device, keep)
        how = (is_async(opts), seconds_of(opts))
        return [Enqueued(function, arguments, keep, factor, self.current_stream(), *how)]

    def _work(self, started: list[Any], result: Tensors, finish: Callable[[], None] | None = None) -> Any:
        work = DeviceWork(self, started, list(result), finish)
        if self._batch is not None:
            return self._hold(work)
        with self._order:
            self.flush()
            own = any([one.is_async for one in started])
            # A work without calls is over when the current stream gets there.
            current = started[0].current if started else self.current_stream()
            self._launch([work], self._stream if own else current, has_begun_now=True)
        return work

    def _launch(
        self,
        works: Sequence[DeviceWork],
        stream: torch.cuda.Stream,
        has_begun_now: bool = False,
    ) -> None:
        """Enqueues the calls of several works together, and then the work that follows them.

        `has_begun_now` says that all calls follow what is in PyTorch's current stream.
        """
        calls = [one for work in works for one in work.started]
        # As in `torch.cuda.device`, whose objects are for one use each, and cost more.
        previous = torch.cuda._exchange_device(self.device.index)
        try:
            for call in calls:
                call.get_ready(stream)
            # Before anything can fail: calls that were enqueued before the failure use them. In
            # PyTorch's own current stream, the program keeps the tensors, as it does for all its
            # work there.
            for work in works if stream is self._stream else ():
                for tensor in tensors_in([work.results, *[call.keep for call in work.started]]):
                    if tensor.is_cuda:
                        tensor.record_stream(stream)
            self._enqueue(calls, stream)
            if has_begun_now and not works[0].has_more:
                # The stream waits for the current one, and so captures a graph if that does.
                captures = torch.cuda.is_current_stream_capturing()
            else:
                captures = self._follow(works, stream)
            end = torch.cuda.Event()
            end.record(stream)
        finally:
            torch.cuda._maybe_exchange_device(previous)
        if not captures:
            self._last = end
        for work in works:
            work.was_enqueued(end, stream)

    def _follow(self, works: Sequence[DeviceWork], stream: torch.cuda.Stream) -> bool:
        """Enqueues the work that follows calls. Returns whether the stream captures a graph."""
        # PyTorch takes longer to change its current stream than for all the rest of a call.
        with torch.cuda.stream(stream), torch.inference_mode():
            for work in works:
                work.finish()
            return bool(torch.cuda.is_current_stream_capturing())

    def _enqueue(self, calls: Sequence[Enqueued], stream: torch.cuda.Stream) -> None:
        handle = self._communicator._handle
        if len(calls) == 1:
            calls[0].enqueue(handle, stream)
            return
        _library.call("group_start")
        try:
            for call in calls:
                call.enqueue(handle, stream)
        finally:
            ended = _library.FUNCTIONS["group_end"]()
        _library.check(ended)

    def _all_reduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Any:
        raise InvalidError("sparse tensors are reduced on the CPU; pass tensor.cpu(), or its dense form")


def current_handle(index: int) -> int:
    """CUDA's handle of PyTorch's current stream of a GPU."""
    handle: int = torch._C._cuda_getCurrentRawStream(index)
    return handle


def _captures() -> bool:
    """Whether the current stream captures a graph."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _check_tag(tag: int) -> None:
    if tag != 0:
        raise InvalidError(f"the tag is {tag}; messages of GPUs match by their order, and have no tag")
