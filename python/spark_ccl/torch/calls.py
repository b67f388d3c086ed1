"""The calls of PyTorch on a communicator: each as one of its calls, or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import BarrierOptions

from .._handle import counts_of
from ..communicator import Communicator
from ..errors import InvalidError
from ..work import Work as Started
from .blocks import Tensors, each_of, in_order, only, pairs, receiving, same_length, same_shape, split_counts
from .tensors import moved, pointer, reduced
from .work import Futures, Work

_NO_TIME = timedelta(0)


class Calls:
    """What a group can do, by the names that PyTorch calls it."""

    _communicator: Communicator
    _rank: int
    _size: int
    _timeout: timedelta
    _futures: Futures

    # What is reduced.

    def allreduce(self, tensors: Tensors, opts: Any) -> Work:
        return self._all_reduce(tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> Work:
        return self._all_reduce(tensors, opts)

    def _all_reduce(self, tensors: Tensors, opts: Any) -> Work:
        started: list[Started] = []
        finishes = []
        for tensor in tensors:
            ordered, finish = in_order(tensor)
            finishes.append(finish)
            at = pointer(ordered, "the tensor")
            count, dtype, op, factor = reduced(ordered, opts.reduceOp)
            started += self._start(opts, "all_reduce", at, at, count, dtype, op, keep=ordered, factor=factor)
        return self._work(started, tensors, each_of(finishes))

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        ordered, finish = in_order(only(tensors))
        at = pointer(ordered, "the tensor")
        count, dtype, op, factor = reduced(ordered, opts.reduceOp)
        arguments = (at, at, count, dtype, op, opts.rootRank)
        return self._work(self._start(opts, "reduce", *arguments, keep=ordered, factor=factor), tensors, finish)

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: Any) -> Work:
        return self._work(self._reduce_scatter(output, whole, opts), [output])

    def reduce_scatter_single_coalesced(self, outputs: Tensors, wholes: Tensors, opts: Any) -> Work:
        started = []
        for output, whole in pairs(outputs, wholes):
            started += self._reduce_scatter(output, whole, opts)
        return self._work(started, outputs)

    def reduce_scatter(self, outputs: Tensors, lists: Sequence[Tensors], opts: Any) -> Work:
        output, blocks = only(outputs), only(lists)
        same_shape(blocks, self._size, "the list", output)
        whole = torch.cat([block.reshape(-1) for block in blocks])
        return self._work(self._reduce_scatter(output, whole, opts), outputs)

    def _reduce_scatter(self, output: torch.Tensor, whole: torch.Tensor, opts: Any) -> list[Started]:
        self._check_blocks("output", output, "input", whole)
        to, source = pointer(output, "output"), pointer(whole, "input")
        count, dtype, op, factor = reduced(output, opts.reduceOp)
        arguments = (source, to, count, dtype, op)
        return self._start(opts, "reduce_scatter", *arguments, keep=(output, whole), factor=factor)

    # What goes from all to all.

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any) -> Work:
        return self._work(self._all_gather(output, own, opts), [output])

    def all_gather_single_coalesced(self, outputs: Tensors, owns: Tensors, opts: Any) -> Work:
        started = []
        for output, own in pairs(outputs, owns):
            started += self._all_gather(output, own, opts)
        return self._work(started, outputs)

    def allgather(self, lists: Sequence[Tensors], owns: Tensors, opts: Any) -> Work:
        return self._gather_lists([only(lists)], owns, opts)

    def allgather_coalesced(self, lists: Sequence[Tensors], owns: Tensors, opts: Any) -> Work:
        # A list for each rank, with a tensor for each of its own.
        for blocks in lists:
            same_length(blocks, owns)
        return self._gather_lists(list(zip(*lists)), owns, opts)

    def _gather_lists(self, lists: Sequence[Tensors], owns: Tensors, opts: Any) -> Work:
        started: list[Started] = []
        finishes = []
        for blocks, own in pairs(lists, owns):
            same_shape(blocks, self._size, "the list", own)
            whole, finish = receiving(blocks)
            finishes.append(finish)
            started += self._all_gather(whole, own.contiguous(), opts)
        return self._work(started, [block for blocks in lists for block in blocks], each_of(finishes))

    def _all_gather(self, output: torch.Tensor, own: torch.Tensor, opts: Any) -> list[Started]:
        self._check_blocks("input", own, "output", output)
        source, to = pointer(own, "input"), pointer(output, "output")
        return self._start(opts, "all_gather", source, to, *moved(own), keep=(output, own))

    def all_to_all_single(
        self, output: torch.Tensor, whole: torch.Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any
    ) -> Work:
        to, source = pointer(output, "output"), pointer(whole, "input")
        if output.dtype != whole.dtype:
            raise InvalidError(f"input is of {whole.dtype}, and output of {output.dtype}")
        sent, dtype = split_counts(whole, input_sizes, self._size, "input")
        received, _ = split_counts(output, output_sizes, self._size, "output")
        arguments = (source, counts_of(sent), None, to, counts_of(received), None, dtype)
        return self._work(self._start(opts, "all_to_all_v", *arguments, keep=(output, whole)), [output])

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        if len(outputs) != self._size or len(inputs) != self._size:
            raise InvalidError(f"the lists have {len(outputs)} and {len(inputs)} tensors; expected {self._size}")
        for block in (*inputs, *outputs):
            if block.dtype != inputs[0].dtype:
                raise InvalidError(f"the lists have tensors of {inputs[0].dtype} and {block.dtype}; expected one type")
        whole = torch.cat([block.reshape(-1) for block in inputs])
        received, finish = receiving(outputs)
        counts = [[moved(block)[0] for block in blocks] for blocks in (inputs, outputs)]
        arguments = (
            pointer(whole, "the list"),
            counts_of(counts[0]),
            None,
            pointer(received, "the list"),
            counts_of(counts[1]),
            None,
            moved(whole)[1],
        )
        started = self._start(opts, "all_to_all_v", *arguments, keep=(received, whole))
        return self._work(started, outputs, finish)

    def barrier(self, opts: Any) -> Work:
        return self._work(self._start(opts, "barrier", keep=()), [])

    def monitored_barrier(self, given: Any, wait_all_ranks: bool = False) -> None:
        """A barrier that has a time of its own: its error names all late ranks, also without `wait_all_ranks`."""
        # A group is given the time itself.
        options = given
        if isinstance(given, timedelta):
            options = BarrierOptions()
            options.timeout = given
        options.asyncOp = False
        self.barrier(options)

    # What has a root.

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        ordered, finish = in_order(only(tensors))
        at = pointer(ordered, "the tensor")
        started = self._start(opts, "broadcast", at, at, *moved(ordered), opts.rootRank, keep=ordered)
        return self._work(started, tensors, finish)

    def gather(self, lists: Sequence[Tensors], owns: Tensors, opts: Any) -> Work:
        own = only(owns).contiguous()
        whole, finish = None, None
        if self._rank == opts.rootRank:
            same_shape(only(lists), self._size, "the list", own)
            whole, finish = receiving(only(lists))
        to = None if whole is None else pointer(whole, "the list")
        arguments = (pointer(own, "the tensor"), to, *moved(own), opts.rootRank)
        results = list(only(lists)) if lists else []
        return self._work(self._start(opts, "gather", *arguments, keep=(own, whole)), results, finish)

    def scatter(self, outputs: Tensors, lists: Sequence[Tensors], opts: Any) -> Work:
        output = only(outputs)
        whole = None
        if self._rank == opts.rootRank:
            same_shape(only(lists), self._size, "the list", output)
            whole = torch.cat([block.reshape(-1) for block in only(lists)])
        source = None if whole is None else pointer(whole, "the list")
        arguments = (source, pointer(output, "output"), *moved(output), opts.rootRank)
        return self._work(self._start(opts, "scatter", *arguments, keep=(output, whole)), outputs)

    # Messages.

    def send(self, tensors: Tensors, to: int, tag: int) -> Work:
        return self._message("send", tensors, to, tag)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        return self._message("recv", tensors, source, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        raise InvalidError("recv needs the rank that sends: the backend spark_ccl receives from no other")

    def _message(self, function: str, tensors: Tensors, peer: int, tag: int) -> Work:
        if tag != 0:
            raise InvalidError(f"the tag is {tag}; the backend spark_ccl has only 0: messages arrive as they were sent")
        ordered, finish = in_order(only(tensors))
        at = pointer(ordered, "the tensor")
        started = self._start(None, function, at, *moved(ordered), peer, keep=ordered)
        return Work(started, list(tensors), self._futures, finish if function == "recv" else None, is_message=True)

    # Older names, which PyTorch has still.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _start(self, opts: Any, function: str, *arguments: Any, keep: Any, factor: Any = None) -> list[Started]:
        """Makes a call; returns it if it has only begun."""
        communicator = self._communicator
        async_op = opts is None or opts.asyncOp
        timeout = self._timeout if opts is None or opts.timeout <= _NO_TIME else opts.timeout
        if timeout != self._timeout:
            communicator.set_timeout(timeout.total_seconds())
        try:
            started = communicator._handle.run(
                function, *arguments, keep=(keep,), name=None, factor=factor, async_op=async_op
            )
        finally:
            if timeout != self._timeout:
                communicator.set_timeout(self._timeout.total_seconds())
        return [] if started is None else [started]

    def _work(self, started: list[Started], result: Tensors, finish: Callable[[], None] | None = None) -> Work:
        work = Work(started, list(result), self._futures, finish)
        if not started:
            work.wait()
        return work

    def _check_blocks(self, part: str, block: torch.Tensor, name: str, whole: torch.Tensor) -> None:
        if block.numel() * self._size != whole.numel() or block.dtype != whole.dtype:
            raise InvalidError(
                f"{name} has {whole.numel()} elements of {whole.dtype}; expected {block.numel() * self._size} of "
                f"{block.dtype}: {block.numel()}, as {part} has, for each of {self._size} ranks"
            )
