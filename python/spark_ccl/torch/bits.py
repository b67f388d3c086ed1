"""Bitwise reductions, which the library does not have: computed here, from the tensors of all
ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp

_OF_BITS = (
    (ReduceOp.BAND, torch.bitwise_and),
    (ReduceOp.BOR, torch.bitwise_or),
    (ReduceOp.BXOR, torch.bitwise_xor),
)


class Bits:
    """A bitwise reduction: the tensor's elements as bytes, and those received from the ranks."""

    def __init__(self, tensor: torch.Tensor, op: Any, blocks: int) -> None:
        """`tensor` is contiguous; each rank's block has its length."""
        self._function = _function(op)
        self.own = _bytes(tensor)
        self.every = self.own.new_empty(blocks, self.own.numel())

    def tensors(self) -> list[torch.Tensor]:
        return [self.own, self.every]

    def combine(self) -> None:
        """Writes the reduction of the blocks to the tensor."""
        first, *others = self.every
        for block in others:
            self._function(first, block, out=first)
        self.own.copy_(first)


def is_of_bits(tensor: torch.Tensor, op: Any) -> bool:
    """Whether this is a bitwise reduction of a tensor of integers or booleans."""
    if tensor.is_floating_point() or tensor.is_complex():
        return False
    return any(op == theirs for theirs, _ in _OF_BITS)


def _function(op: Any) -> Callable[..., torch.Tensor]:
    found: Callable[..., torch.Tensor] = next(function for theirs, function in _OF_BITS if op == theirs)
    return found


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
