"""Tensors that a call reads or fills side by side: lists of tensors, and parts of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..errors import InvalidError
from ..types import DType
from .tensors import check_has_memory, moved

Tensors = Sequence[torch.Tensor]


def only(given: Sequence[Any]) -> Any:
    if len(given) != 1:
        raise InvalidError(f"there are {len(given)} tensors, or lists, in one call; expected one for each rank")
    return given[0]


def listed(given: Tensors | torch.Tensor) -> Tensors:
    return [given] if isinstance(given, torch.Tensor) else given


def pairs(some: Sequence[Any], others: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The pairs of two lists; raises `InvalidError` unless they are equally long."""
    same_length(some, others)
    return zip(some, others)


def same_length(some: Sequence[Any], others: Sequence[Any]) -> None:
    if len(some) != len(others):
        raise InvalidError(f"the lists of one call have {len(some)} and {len(others)} entries; expected equally many")


def in_order(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """The tensor, or a contiguous copy, and a function that copies results back."""
    return (tensor, None) if tensor.is_contiguous() else copied(tensor)


def copied(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
    """A contiguous copy of the tensor, and a function that copies results back."""
    ordered = tensor.clone(memory_format=torch.contiguous_format)

    def copy() -> None:
        tensor.copy_(ordered)

    return ordered, copy


def overlap(tensors: Tensors) -> bool:
    """Whether the memory from a tensor's first to its last element overlaps that of another."""
    extents = sorted(_extent(one) for one in tensors if one.layout == torch.strided and one.numel() > 0)
    return any(end > start for (_, end), (start, _) in zip(extents, extents[1:]))


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def apart(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The source, or a copy if its memory overlaps the target's, which the library refuses. Both
    are contiguous."""
    start, place = source.data_ptr(), target.data_ptr()
    is_shared = start < place + target.nbytes and place < start + source.nbytes
    return source.clone() if is_shared else source


def receiving(blocks: Tensors) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Contiguous memory to receive these tensors, and a function that copies from it to them."""
    for place, block in enumerate(blocks):
        check_has_memory(block, f"the list's tensor {place}")
    if side_by_side(blocks):
        count = sum(block.numel() for block in blocks)
        return blocks[0].as_strided((count,), (1,)), None
    whole = torch.empty(sum(block.numel() for block in blocks), dtype=blocks[0].dtype, device=blocks[0].device)

    def copy() -> None:
        parts = whole.split([block.numel() for block in blocks])
        for block, part in zip(blocks, parts):
            block.copy_(part.view(block.shape))

    return whole, copy


def each_of(finishes: Sequence[Callable[[], None] | None]) -> Callable[[], None] | None:
    wanted = [finish for finish in finishes if finish is not None]

    def finish_all() -> None:
        for finish in wanted:
            finish()

    return finish_all if wanted else None


def split_counts(tensor: torch.Tensor, rows: list[int], size: int, name: str) -> tuple[list[int], DType]:
    """How many elements of a tensor go to, or come from, each rank: `rows` of it, or equal parts
    if that is empty."""
    count, dtype = moved(tensor)
    length = tensor.size(0) if tensor.dim() > 0 else tensor.numel()
    if not rows:
        if length % size != 0:
            raise InvalidError(f"{name} has {length} rows, which {size} ranks cannot share equally")
        rows = [length // size] * size
    if len(rows) != size or sum(rows) != length or min(rows) < 0:
        raise InvalidError(f"the split sizes of {name} are {rows}; expected {size}, {length} in all")
    of_row = count // length if length > 0 else 0
    return [row * of_row for row in rows], dtype


def same_shape(tensors: Tensors, count: int, name: str, like: torch.Tensor) -> None:
    """Raises `InvalidError` unless there are `count` tensors with as many elements, and of the same
    type, as `like`."""
    _one_for_each(tensors, count, name)
    for rank, tensor in enumerate(tensors):
        _same(tensor, f"{name}[{rank}]", like, tensor.numel() == like.numel())


def room_for_each(tensors: Tensors, count: int, name: str, rank: int, own: torch.Tensor) -> None:
    """Raises `InvalidError` unless there are `count` tensors of the same type as `own`, the tensor
    of `rank`, and that of `rank` has as many elements."""
    _one_for_each(tensors, count, name)
    for peer, tensor in enumerate(tensors):
        _same(tensor, f"{name}[{peer}]", own, peer != rank or tensor.numel() == own.numel())


def _one_for_each(tensors: Tensors, count: int, name: str) -> None:
    if len(tensors) != count:
        raise InvalidError(f"{name} has {len(tensors)} tensors; expected one for each of {count} ranks")


def _same(tensor: torch.Tensor, name: str, like: torch.Tensor, fits: bool) -> None:
    if not fits or tensor.dtype != like.dtype:
        counted = ["elements" if fits else f"{one.numel()} elements" for one in (tensor, like)]
        seen, expected = [f"{text} of {one.dtype}" for text, one in zip(counted, (tensor, like))]
        raise InvalidError(f"{name} has {seen}; expected {expected}")


def side_by_side(tensors: Tensors) -> bool:
    """Whether each tensor's memory follows that of the one before."""
    first = tensors[0]
    place = first.data_ptr()
    storage = first.untyped_storage().data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != place or not tensor.is_contiguous():
            return False
        # The received bytes would not be the elements' values.
        if tensor.is_conj() or tensor.is_neg():
            return False
        if tensor.untyped_storage().data_ptr() != storage:
            return False
        place += tensor.numel() * tensor.element_size()
    return True
