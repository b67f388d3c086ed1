"""Sums of sparse tensors: ranks exchange how many elements they have, then the elements, and add
them up here."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp

from .._handle import counts_of
from ..errors import InvalidError
from .tensors import moved, pointer


class Part:
    """The rows that a rank sends to and receives from each rank: one for each element."""

    def __init__(self, own: torch.Tensor, rows: list[int]) -> None:
        self.own = own.contiguous()
        self.every = own.new_empty((sum(rows), *own.shape[1:]))
        self._rows = rows

    def tensors(self) -> list[torch.Tensor]:
        return [self.own, self.every]

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of `all_to_all_v` by which each rank gets the same from this one."""
        size, (count, dtype) = len(self._rows), moved(self.own)
        of_row = moved(self.every)[0] // max(1, sum(self._rows))
        comes = counts_of([rows * of_row for rows in self._rows])
        return (
            pointer(self.own, "the tensor"),
            counts_of([count] * size),
            counts_of([0] * size),
            pointer(self.every, "the result"),
            comes,
            None,
            dtype,
        )


class Sparse:
    """A sparse tensor that becomes the sum of those of all ranks."""

    def __init__(self, tensor: torch.Tensor, op: Any) -> None:
        if op != ReduceOp.SUM:
            raise InvalidError("of sparse tensors there is only the sum")
        self._tensor = tensor
        self._own = tensor.detach().coalesce()
        self._parts: list[Part] = []
        # Elements, and what must be equal on all ranks: the number of sparse dimensions, and the
        # shape.
        self.told = torch.tensor([self._own.values().size(0), self._own.sparse_dim(), *tensor.shape])

    def tensors(self) -> list[torch.Tensor]:
        return [self.told]

    def parts(self, told: torch.Tensor) -> list[Part]:
        """The exchange to make, by the sizes of all ranks, a row for each; raises
        `InvalidError`."""
        for rank, other in enumerate(told[:, 1:].tolist()):
            if other != self.told[1:].tolist():
                raise InvalidError(
                    f"rank {rank} has a sparse tensor of shape {other[1:]}, {other[0]} dimensions of which are sparse; "
                    f"expected {list(self._tensor.shape)}, {self._own.sparse_dim()} of them sparse, as here"
                )
        rows = told[:, 0].tolist()
        self._parts = [Part(self._own.indices().t(), rows), Part(self._own.values(), rows)]
        return self._parts

    def add_up(self) -> None:
        """Writes the sum to the tensor."""
        indices, values = (part.every for part in self._parts)
        self._tensor.copy_(torch.sparse_coo_tensor(indices.t(), values, self._tensor.shape).coalesce())
