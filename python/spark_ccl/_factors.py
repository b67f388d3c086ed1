"""Converts a factor to one element of a type."""

from __future__ import annotations

import ctypes
import math
import struct

from .errors import InvalidError
from .types import DType

_FORMATS = {
    DType.INT8: "b",
    DType.UINT8: "B",
    DType.INT32: "i",
    DType.UINT32: "I",
    DType.INT64: "q",
    DType.UINT64: "Q",
    DType.FLOAT16: "e",
    DType.FLOAT32: "f",
    DType.FLOAT64: "d",
}


def element(factor: float, dtype: DType) -> ctypes.Array[ctypes.c_char]:
    """The bytes of `factor` as an element of `dtype`; raises `InvalidError` if it cannot be one."""
    if dtype == DType.BFLOAT16:
        packed = _bfloat16(factor)
    elif dtype in _FORMATS:
        try:
            packed = struct.pack("=" + _FORMATS[dtype], factor)
        except (struct.error, OverflowError) as error:
            raise InvalidError(f"the factor {factor!r} is no {dtype.name.lower()}: {error}") from None
    else:
        raise InvalidError(f"factors of {dtype.name.lower()} cannot be given here; multiply before the call")
    return ctypes.create_string_buffer(packed, len(packed))


def _bfloat16(factor: float) -> bytes:
    """The upper half of a 32-bit float, rounded to nearest, ties to even."""
    try:
        bits = struct.unpack("=I", struct.pack("=f", factor))[0]
    except (struct.error, OverflowError) as error:
        raise InvalidError(f"the factor {factor!r} is no bfloat16: {error}") from None
    if not math.isnan(factor):
        bits += 0x7FFF + (bits >> 16 & 1)
    return struct.pack("=H", bits >> 16)
