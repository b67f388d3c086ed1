"""Calls of PyTorch that reduce, on a communicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch.distributed import AllreduceOptions, ReduceOptions, ReduceScatterOptions

from ..errors import InvalidError
from ..work import Work as Started
from .bits import Bits
from .blocks import Tensors, copied, each_of, in_order, listed, only, overlap, pairs, same_shape
from .options import CallStarter, options
from .sparse import Sparse
from .tensors import moved, pointer, reduced
from .work import Work

# Calls that have begun, and the function to call when they are done.
_Begun = tuple[list[Started], Optional[Callable[[], None]]]


class Reductions(CallStarter):
    """The reductions of a group, under PyTorch's names."""

    def allreduce(self, tensors: Tensors | torch.Tensor, opts: Any = None) -> Work:
        # Of several tensors, gloo would also add up those of one rank.
        return self._all_reduce_each([only(listed(tensors))], opts, True)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        if not tensors:
            raise InvalidError("the list of tensors is empty; expected one or more")
        # Each gets the sum of what it had before the call.
        return self._all_reduce_each(tensors, opts, not overlap(tensors))

    def _all_reduce_each(self, tensors: Tensors, opts: Any, is_apart: bool) -> Work:
        opts = options(AllreduceOptions, opts, "reduceOp")
        started: list[Started] = []
        finishes = []
        for tensor in tensors:
            of_tensor, finish = self._all_reduce(tensor, opts, is_apart)
            started += of_tensor
            finishes.append(finish)
        return self._work(started, tensors, each_of(finishes))

    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:
        opts = options(ReduceOptions, opts)
        ordered, finish = in_order(only(tensors))
        at = pointer(ordered, "the tensor")
        known = reduced(ordered, opts.reduceOp)
        if known is None:
            bits = Bits(ordered, opts.reduceOp, self._size if self._rank == opts.rootRank else 0)
            arguments = (at, bits.every.data_ptr(), *moved(bits.own), opts.rootRank)
            done = each_of([bits.combine, finish]) if self._rank == opts.rootRank else None
            return self._work(self._start(opts, "gather", *arguments, keep=bits), tensors, done)
        count, dtype, op, factor = known
        arguments = (at, at, count, dtype, op, opts.rootRank)
        return self._work(self._start(opts, "reduce", *arguments, keep=ordered, factor=factor), tensors, finish)

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> Work:
        opts = options(ReduceScatterOptions, opts, "reduceOp")
        started, finish = self._reduce_scatter(output, whole, opts)
        return self._work(started, [output], finish)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, wholes: Tensors, opts: Any = None) -> Work:
        opts = options(ReduceScatterOptions, opts, "reduceOp")
        started: list[Started] = []
        finishes = []
        for output, whole in pairs(outputs, wholes):
            of_tensor, finish = self._reduce_scatter(output, whole, opts)
            started += of_tensor
            finishes.append(finish)
        return self._work(started, outputs, each_of(finishes))

    def reduce_scatter(self, outputs: Tensors, lists: Sequence[Tensors], opts: Any = None) -> Work:
        output, blocks = only(outputs), only(lists)
        same_shape(blocks, self._size, "the list", output)
        whole = torch.cat([block.reshape(-1) for block in blocks])
        return self.reduce_scatter_single(output, whole, opts)

    def _all_reduce(self, tensor: torch.Tensor, opts: Any, is_apart: bool) -> _Begun:
        if tensor.layout == torch.sparse_coo:
            return self._all_reduce_sparse(tensor, opts)
        ordered, finish = in_order(tensor) if is_apart else copied(tensor)
        at = pointer(ordered, "the tensor")
        known = reduced(ordered, opts.reduceOp)
        if known is None:
            bits = Bits(ordered, opts.reduceOp, self._size)
            started = self._start(opts, "all_gather", at, bits.every.data_ptr(), *moved(bits.own), keep=bits)
            return started, each_of([bits.combine, finish])
        count, dtype, op, factor = known
        return self._start(opts, "all_reduce", at, at, count, dtype, op, keep=ordered, factor=factor), finish

    def _all_reduce_sparse(self, tensor: torch.Tensor, opts: Any) -> _Begun:
        sparse = Sparse(tensor, opts.reduceOp)
        told = sparse.told.new_empty(self._size, sparse.told.numel())
        arguments = (pointer(sparse.told, "the shape"), told.data_ptr(), *moved(sparse.told))
        # Waits even if the call is only started: the sizes must be known before more can
        # begin.
        self._work(self._start(opts, "all_gather", *arguments, keep=(sparse, told)), []).wait()
        started: list[Started] = []
        for part in sparse.parts(told):
            started += self._start(opts, "all_to_all_v", *part.arguments(), keep=part)
        return started, sparse.add_up

    def _reduce_scatter(self, output: torch.Tensor, whole: torch.Tensor, opts: Any) -> _Begun:
        self._check_blocks("output", output, "input", whole)
        whole = self._source(whole, output)
        to, source = pointer(output, "output"), pointer(whole, "input")
        known = reduced(output, opts.reduceOp)
        if known is None:
            bits = Bits(output, opts.reduceOp, self._size)
            arguments = (source, bits.every.data_ptr(), *moved(bits.own))
            return self._start(opts, "all_to_all", *arguments, keep=(bits, whole)), bits.combine
        count, dtype, op, factor = known
        arguments = (source, to, count, dtype, op)
        return self._start(opts, "reduce_scatter", *arguments, keep=(output, whole), factor=factor), None

    # Other names that PyTorch has for these calls.

    allreduce_sparse = allreduce
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
