"""Calls of PyTorch, each as one or several calls of a communicator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import BarrierOptions, BroadcastOptions, GatherOptions, ScatterOptions

from .._handle import counts_of
from ..errors import InvalidError
from ..work import Work as Started
from .blocks import (
    Tensors,
    apart,
    each_of,
    in_order,
    listed,
    only,
    pairs,
    receiving,
    room_for_each,
    same_length,
    same_shape,
    split_counts,
)
from .messages import Messages
from .options import options
from .reductions import Reductions
from .tensors import moved, pointer
from .work import Work


class Calls(Reductions, Messages):
    """The operations of a group, under PyTorch's names."""

    # From all ranks to all.

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Work:
        return self._work(self._all_gather(output, own, opts), [output])

    def all_gather_single_coalesced(self, outputs: Tensors, owns: Tensors, opts: Any = None) -> Work:
        started = []
        for output, own in pairs(outputs, owns):
            started += self._all_gather(output, own, opts)
        return self._work(started, outputs)

    def allgather(self, lists: Sequence[Tensors], owns: Tensors, opts: Any = None) -> Work:
        return self._gather_lists([only(lists)], owns, opts)

    def allgather_coalesced(self, lists: Sequence[Tensors], owns: Tensors, opts: Any = None) -> Work:
        # A list for each rank, with a tensor for each of its own.
        for blocks in lists:
            same_length(blocks, owns)
        return self._gather_lists(list(zip(*lists)), owns, opts)

    def _gather_lists(self, lists: Sequence[Tensors], owns: Tensors, opts: Any) -> Work:
        started: list[Started] = []
        finishes = []
        for blocks, own in pairs(lists, owns):
            room_for_each(blocks, self._size, "the list", self._rank, own)
            whole, finish = receiving(blocks)
            finishes.append(finish)
            started += self._gather_list(whole, blocks, own.contiguous(), opts)
        return self._work(started, [block for blocks in lists for block in blocks], each_of(finishes))

    def _gather_list(
        self,
        whole: torch.Tensor,
        blocks: Tensors,
        own: torch.Tensor,
        opts: Any,
    ) -> list[Started]:
        """Gathers the blocks of all ranks into `whole`, where their elements follow each other."""
        if all(block.numel() == own.numel() for block in blocks):
            return self._all_gather(whole, own, opts)
        # Each rank sends its own block to all. In host memory, and with our own kernels, they
        # compare lengths, and raise if these differ; NCCL does not.
        sent = apart(own, whole)
        count, dtype = moved(sent)
        lengths = counts_of([moved(block)[0] for block in blocks])
        to_each, from_start = counts_of([count] * self._size), counts_of([0] * self._size)
        source, to = pointer(sent, "input"), pointer(whole, "the list")
        arguments = (source, to_each, from_start, to, lengths, None, dtype)
        return self._start(opts, "all_to_all_v", *arguments, keep=(whole, sent))

    def _all_gather(self, output: torch.Tensor, own: torch.Tensor, opts: Any) -> list[Started]:
        self._check_blocks("input", own, "output", output)
        sent = self._source(own, output)
        source, to = pointer(sent, "input"), pointer(output, "output")
        return self._start(opts, "all_gather", source, to, *moved(own), keep=(output, sent))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> Work:
        whole = apart(whole, output)
        to, source = pointer(output, "output"), pointer(whole, "input")
        if output.dtype != whole.dtype:
            raise InvalidError(f"input is of {whole.dtype}, and output of {output.dtype}")
        sent, dtype = split_counts(whole, input_sizes, self._size, "input")
        received, _ = split_counts(output, output_sizes, self._size, "output")
        arguments = (source, counts_of(sent), None, to, counts_of(received), None, dtype)
        return self._work(self._start(opts, "all_to_all_v", *arguments, keep=(output, whole)), [output])

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
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

    def barrier(self, opts: Any = None) -> Work:
        opts = options(BarrierOptions, opts)
        return self._work(self._start(opts, "barrier", keep=()), [])

    def monitored_barrier(self, given: Any, wait_all_ranks: bool = False) -> None:
        """A barrier with its own timeout. Its error names all late ranks, also without
        `wait_all_ranks`."""
        # A group gets the time itself.
        options = given
        if isinstance(given, timedelta):
            options = BarrierOptions()
            options.timeout = given
        options.asyncOp = False
        self.barrier(options)

    # Calls with a root.

    def broadcast(self, tensors: Tensors | torch.Tensor, opts: Any = None) -> Work:
        opts = options(BroadcastOptions, opts, "rootRank")
        tensors = listed(tensors)
        ordered, finish = in_order(only(tensors))
        at = pointer(ordered, "the tensor")
        started = self._start(opts, "broadcast", at, at, *moved(ordered), opts.rootRank, keep=ordered)
        return self._work(started, tensors, finish)

    def gather(self, lists: Sequence[Tensors], owns: Tensors, opts: Any = None) -> Work:
        opts = options(GatherOptions, opts)
        own = only(owns).contiguous()
        whole, finish = None, None
        if self._rank == opts.rootRank:
            same_shape(only(lists), self._size, "the list", own)
            whole, finish = receiving(only(lists))
            own = self._source(own, whole)
        to = None if whole is None else pointer(whole, "the list")
        arguments = (pointer(own, "the tensor"), to, *moved(own), opts.rootRank)
        results = list(only(lists)) if lists else []
        return self._work(self._start(opts, "gather", *arguments, keep=(own, whole)), results, finish)

    def scatter(self, outputs: Tensors, lists: Sequence[Tensors], opts: Any = None) -> Work:
        opts = options(ScatterOptions, opts)
        output = only(outputs)
        whole = None
        if self._rank == opts.rootRank:
            same_shape(only(lists), self._size, "the list", output)
            whole = torch.cat([block.reshape(-1) for block in only(lists)])
        source = None if whole is None else pointer(whole, "the list")
        arguments = (source, pointer(output, "output"), *moved(output), opts.rootRank)
        return self._work(self._start(opts, "scatter", *arguments, keep=(output, whole)), outputs)

    # Older names, which PyTorch still has.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single
