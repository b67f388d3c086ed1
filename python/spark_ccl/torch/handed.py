"""Calls on a GPU that PyTorch's own process group for NCCL makes, on this package's library in
NCCL's place: that takes less time for a call than Python does."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import AllreduceOptions, BroadcastOptions, ReduceOp, ReduceScatterOptions

from ..communicator import Communicator
from ..errors import Error, RemoteError
from .blocks import Tensors, in_order, listed, only
from .device_work import DeviceWork
from .devices import DeviceCalls
from .nccl_library import failure_of, is_ours, set_timeout, why_not_used
from .options import limit_of, options
from .rendezvous import meet_on_device
from .tensors import check_all_on, pointer

# What both ways move and reduce alike.
_TYPES = {
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}
_OPS = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PRODUCT)
# Turns PyTorch's watchdog off, which would end the process when a call fails: the process gets an
# error instead. torchrun sets the first one otherwise.
_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_DESYNC_DEBUG": "0",
}
# The process has one environment.
_environments = threading.Lock()
_log = logging.getLogger(__name__)


def connect(
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    device: torch.device,
) -> DeviceCalls:
    """Connects this rank's GPU to those of the others, which all call this. The calls of all ranks
    go the same way."""
    reason = why_not_used()
    answer = (reason, not reason or is_ours())
    communicator, own, reasons = meet_on_device(store, rank, size, timeout, device.index, *answer)
    if any(reasons):
        _tell(rank, reasons)
        return DeviceCalls(communicator, device, timeout)
    group = dist.ProcessGroupNCCL.Options()
    group._timeout = timeout
    with _environment(_SETTINGS):
        nccl: Any = dist.ProcessGroupNCCL(own, rank, size, group)
    # Now, while all ranks are here, and no stream captures a graph.
    nccl.eager_connect_single_device(device)
    with torch.cuda.device(device):
        made = nccl._comm_ptr()
    calls = HandedCalls(communicator, device, timeout, nccl, made)
    calls.set_timeout(timeout)
    return calls


def _tell(rank: int, reasons: Sequence[str]) -> None:
    """Logs why calls are made in Python; as a warning if some ranks could do otherwise."""
    if rank == 0:
        level = logging.INFO if all(reasons) else logging.WARNING
        of, reason = next((of, reason) for of, reason in enumerate(reasons) if reason)
        _log.log(
            level,
            "calls on GPUs are made in Python, which takes longer: of rank %d, %s",
            of,
            reason,
        )


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    with _environments:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


class HandedWork(DeviceWork):
    """A call in a stream of PyTorch's group."""

    def __init__(self, owner: HandedCalls, work: Any, results: list[torch.Tensor]) -> None:
        super().__init__(owner, [], results, None)
        self._calls, self._work = owner, work

    def wait(self, timeout: timedelta | None = None) -> bool:
        if timeout is not None and timeout > timedelta(0):
            self._wait_at_most(timeout)
        # The work's own `wait` waits on the CPU, as the group has no watchdog.
        self._work.block_current_stream()
        self._check()
        return True

    def _check(self) -> None:
        try:
            self._calls.raise_failure()
        except Error as failure:
            self._failure = failure
            raise
        super()._check()

    def is_completed(self) -> bool:
        if self._failure is None:
            with contextlib.suppress(Error):
                self._check()
        return self._failure is not None or self._work.is_completed()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = self._work.get_future()
        return future


class HandedCalls(DeviceCalls):
    """A group's calls on this rank's GPU. PyTorch's process group makes those that it can make just
    as well; all ranks divide them alike. Calls of a batch and messages are not among these."""

    def __init__(
        self,
        communicator: Communicator,
        device: torch.device,
        timeout: timedelta,
        nccl: Any,
        made: int,
    ) -> None:
        super().__init__(communicator, device, timeout)
        # And the address of its communicator.
        self._nccl, self._made = nccl, made
        # Of the last handed calls outside graphs: the work of one in that group's stream, and the
        # stream of one without a work, which was current.
        self._handed: Any = None
        self._handed_in: torch.cuda.Stream | None = None

    def allreduce(self, tensors: Tensors | torch.Tensor, opts: Any = None) -> Any:
        opts = options(AllreduceOptions, opts, "reduceOp")
        tensor = only(listed(tensors))
        if tensor.layout != torch.strided or not self._takes(tensor, opts, opts.reduceOp):
            return super().allreduce(tensors, opts)
        return self._hand_in_order("allreduce", tensor, opts)

    def broadcast(self, tensors: Tensors | torch.Tensor, opts: Any = None) -> Any:
        opts = options(BroadcastOptions, opts, "rootRank")
        tensor = only(listed(tensors))
        if not self._takes(tensor, opts):
            return super().broadcast(tensors, opts)
        return self._hand_in_order("broadcast", tensor, opts)

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Any:
        if not self._takes(own, opts):
            return super().all_gather_single(output, own, opts)
        self._check_blocks("input", own, "output", output)
        return self._hand_both("_allgather_base", output, self._source(own, output), opts)

    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        opts: Any = None,
    ) -> Any:
        opts = options(ReduceScatterOptions, opts, "reduceOp")
        if not self._takes(output, opts, opts.reduceOp):
            return super().reduce_scatter_single(output, whole, opts)
        self._check_blocks("output", output, "input", whole)
        return self._hand_both("_reduce_scatter_base", output, self._source(whole, output), opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> Any:
        if output_sizes or input_sizes or not self._takes(whole, opts):
            return super().all_to_all_single(output, whole, output_sizes, input_sizes, opts)
        whole, _, _ = self._equal_parts(output, whole)
        check_all_on(self.device, (output, whole))
        pointer(output, "output")
        pointer(whole, "input")
        # It divides rows, and there may be fewer than ranks.
        return self._hand("alltoall_base", opts, output.view(-1), whole.view(-1), [], [])

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    def _takes(self, tensor: torch.Tensor, opts: Any, op: Any = None) -> bool:
        """Whether the call is handed on, by what all ranks have in common."""
        # PyTorch's group has one time for all calls.
        is_usual = self._batch is None and limit_of(opts) is None and tensor.dtype in _TYPES
        return is_usual and (op is None or any(op == known for known in _OPS))

    def _hand_in_order(self, name: str, tensor: torch.Tensor, opts: Any) -> Any:
        """Hands on a call with one tensor, or with a contiguous copy of it."""
        if tensor.is_contiguous() and not tensor.is_neg():
            return self._hand(name, opts, [tensor])
        ordered, copy = in_order(tensor)
        pointer(ordered, "the tensor")
        # The copy back follows in the current stream.
        work = self._hand(name, opts, [ordered])
        if work is not None:
            work.wait()
        return self._work([], [tensor], copy)

    def _hand_both(
        self,
        name: str,
        output: torch.Tensor,
        given: torch.Tensor,
        opts: Any,
        *more: Any,
    ) -> Any:
        check_all_on(self.device, (output, given))
        pointer(output, "output")
        pointer(given, "input")
        return self._hand(name, opts, output, given, *more)

    def _hand(self, name: str, opts: Any, *arguments: Any) -> Any:
        """The call's work; `None` if the call is in the current stream."""
        if opts is not None:
            arguments = (*arguments, opts)
        with self._order:
            self.flush()
            # It says who has died or aborted.
            self._communicator.check()
            try:
                work = getattr(self._nccl, name)(*arguments)
            except Exception as failure:
                self.raise_failure()
                self._communicator.check()
                # The ranks are out of step: others may wait for this one's part.
                self._communicator.abort(f"PyTorch's {name} has failed: {failure}")
                self._nccl.abort()
                raise
            if work is not None:
                work = HandedWork(self, work, list(listed(arguments[0])))
            if torch.cuda.is_current_stream_capturing():
                return work
            if work is None:
                self._handed_in = self.current_stream()
            else:
                self._handed = work
        return work

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        # The library has the time of calls, as PyTorch's group has no watchdog.
        set_timeout(self._made, int(timeout / timedelta(milliseconds=1)))

    def raise_failure(self) -> None:
        """Raises why handed calls have failed."""
        # Works would ask the driver for their events, which ends captures.
        if failure := failure_of(self._made):
            raise RemoteError(failure)

    def _launch(self, works: Any, stream: torch.cuda.Stream, has_begun_now: bool = False) -> None:
        self.raise_failure()
        super()._launch(works, stream, has_begun_now)

    def _has_run(self) -> bool:
        stream, work = self._handed_in, self._handed
        is_idle = stream is None or stream.query()
        return super()._has_run() and is_idle and (work is None or work.is_completed())

    def wait_for_all(self, limit: timedelta | None = None) -> None:
        work, stream = self._handed, self._handed_in
        # The current stream waits.
        if work is not None:
            work.wait()
        if stream is not None and stream != self.current_stream():
            self.current_stream().wait_stream(stream)
        super().wait_for_all(limit)
        # It keeps the memory of its call.
        self._handed = None
        self.raise_failure()

    def abort(self) -> None:
        super().abort()
        self._nccl.abort()

    def close(self) -> None:
        super().close()
        try:
            # It waits for no other rank, unlike `shutdown`, and what this rank has done stays done.
            self._nccl.abort()
        except RuntimeError as failure:
            _log.warning("PyTorch's group does not end: %s", failure)
