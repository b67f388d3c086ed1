"""Translates tensors and reductions of PyTorch to those of the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

from .._factors import element
from ..errors import InvalidError
from ..types import DType, Op
from .bits import is_of_bits

_PRE_MUL_SUM = 5

_TYPES = {
    torch.int8: DType.INT8,
    torch.uint8: DType.UINT8,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.float16: DType.FLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.bfloat16: DType.BFLOAT16,
    torch.float8_e4m3fn: DType.FLOAT8_E4M3,
    torch.float8_e5m2: DType.FLOAT8_E5M2,
    torch.uint32: DType.UINT32,
    torch.uint64: DType.UINT64,
}
# Types that are reduced by parts.
_PARTS = {torch.complex64: DType.FLOAT32, torch.complex128: DType.FLOAT64}
_SUM = ReduceOp.SUM
_OPS = (
    (ReduceOp.SUM, Op.SUM),
    (ReduceOp.AVG, Op.AVG),
    (ReduceOp.MAX, Op.MAX),
    (ReduceOp.MIN, Op.MIN),
    (ReduceOp.PRODUCT, Op.PROD),
)
# Reductions of truth values, which are bytes of 0 and 1.
_OF_TRUTH = (
    (ReduceOp.SUM, Op.MAX),
    (ReduceOp.MAX, Op.MAX),
    (ReduceOp.BOR, Op.MAX),
    (ReduceOp.PRODUCT, Op.MIN),
    (ReduceOp.MIN, Op.MIN),
    (ReduceOp.BAND, Op.MIN),
)


def pointer(tensor: torch.Tensor, name: str) -> int:
    """The address of a contiguous tensor's elements; raises `InvalidError` unless it is of the CPU
    or of a GPU."""
    check_has_memory(tensor, name)
    if tensor.is_conj():
        raise InvalidError(f"{name} is a conjugate that was not computed yet; pass its resolve_conj()")
    if tensor.is_neg():
        raise InvalidError(f"{name} is a negative that was not computed yet; pass its resolve_neg()")
    if not tensor.is_contiguous():
        raise InvalidError(f"{name} must be contiguous; its strides are {tensor.stride()}")
    address: int = tensor.data_ptr()
    return address


def check_has_memory(tensor: torch.Tensor, name: str) -> None:
    """Raises `InvalidError` unless a tensor is in memory of the CPU or of a GPU."""
    if not (tensor.is_cpu or tensor.is_cuda):
        raise InvalidError(
            f"{name} is on {tensor.device}; the backend spark_ccl is for tensors on CPUs and NVIDIA's GPUs"
        )


def tensors_in(kept: Any) -> list[torch.Tensor]:
    """The tensors that a call keeps: one, several, or those of an object."""
    found: list[torch.Tensor] = []
    # Without recursion: each call on a GPU comes here twice, and takes as long as its functions.
    left = [kept]
    while left:
        one = left.pop()
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif one is not None:
            left += one if isinstance(one, (tuple, list)) else one.tensors()
    return found


def check_all_on(device: torch.device, kept: Any) -> None:
    """Raises `InvalidError` unless all tensors that a call keeps are on the same device."""
    for tensor in tensors_in(kept):
        if tensor.device != device:
            raise InvalidError(f"a tensor is on {tensor.device}; expected {device}, as of the call's first one")


def moved(tensor: torch.Tensor) -> tuple[int, DType]:
    """Elements, and their type, of a tensor that is only moved: bytes, if the library lacks its
    type."""
    dtype = _TYPES.get(tensor.dtype)
    if dtype is None:
        return tensor.numel() * tensor.element_size(), DType.UINT8
    return tensor.numel(), dtype


def reduced(tensor: torch.Tensor, op: Any) -> tuple[int, DType, int, Any] | None:
    """Elements, their type, the reduction, and its factor, of a tensor that is reduced; raises
    `InvalidError`.

    `None` for bitwise reductions, which the library does not have.
    """
    dtype = _TYPES.get(tensor.dtype)
    if dtype is not None:
        if op == _SUM:
            return tensor.numel(), dtype, Op.SUM, None
        if op == ReduceOp.PREMUL_SUM:
            return tensor.numel(), dtype, _PRE_MUL_SUM, element(_factor(op), dtype)
        known: Sequence[tuple[Any, Op]] = _OPS
        count = tensor.numel()
    elif tensor.dtype in _PARTS:
        known, dtype, count = _OPS[:2], _PARTS[tensor.dtype], 2 * tensor.numel()
    elif tensor.dtype == torch.bool:
        known, dtype, count = _OF_TRUTH, DType.UINT8, tensor.numel()
    elif is_of_bits(tensor, op):
        return None
    else:
        raise InvalidError(f"tensors of {tensor.dtype} cannot be reduced, only moved")
    for theirs, ours in known:
        if op == theirs:
            return count, dtype, ours, None
    if is_of_bits(tensor, op):
        return None
    raise InvalidError(f"there is no reduction {_name(op)} of {tensor.dtype}")


def _factor(op: Any) -> float:
    factor = op.__getstate__()[1]
    return float(factor.item()) if isinstance(factor, torch.Tensor) else factor


def _name(op: Any) -> str:
    return str(getattr(op, "op", op)).rpartition(".")[2]
