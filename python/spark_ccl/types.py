"""Element types and reductions. Their numbers are those of the C interface, and of NCCL."""

from __future__ import annotations

import enum


class DType(enum.IntEnum):
    """The type of a buffer's elements."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8_E4M3 = 10
    FLOAT8_E5M2 = 11

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _SIZES[self]


_SIZES = {
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.INT32: 4,
    DType.UINT32: 4,
    DType.INT64: 8,
    DType.UINT64: 8,
    DType.FLOAT16: 2,
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.BFLOAT16: 2,
    DType.FLOAT8_E4M3: 1,
    DType.FLOAT8_E5M2: 1,
}


class Op(enum.IntEnum):
    """Combines the elements of all ranks into one. Integers wrap around; a maximum or minimum with
    NaN is NaN."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4
    """The mean. Integers are summed, divided, and rounded towards 0.

    Floats are multiplied by 1/size before they are added, so none overflows. That is done in their
    type (denormals may lose their last bits); for floats of less than 32 bits in float32, without
    rounding the products before they are added.
    """
