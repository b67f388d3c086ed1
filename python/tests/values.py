"""Values that differ between ranks and places, and the expected results of collectives."""

from __future__ import annotations

from typing import Any

import numpy
import numpy.typing

from spark_ccl import Op

TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
COUNTS = (0, 1, 7, 1000, 70_001)
Array = numpy.typing.NDArray[Any]


def of_rank(rank: int, count: int, dtype: str) -> Array:
    """Small whole numbers, exact as floats, which differ between ranks at each place."""
    places = numpy.arange(count, dtype=numpy.int64)
    return ((places * 7 + places // 256 + rank * 3) % 11 + rank % 2).astype(dtype)


def reduced(op: Op, size: int, count: int, dtype: str) -> Array:
    """The expected reduction of all ranks' values."""
    ranks = numpy.stack([of_rank(rank, count, dtype) for rank in range(size)])
    if op == Op.MAX:
        result = ranks.max(axis=0)
    elif op == Op.MIN:
        result = ranks.min(axis=0)
    elif op == Op.PROD:
        result = numpy.multiply.reduce(ranks, axis=0, dtype=dtype)
    else:
        result = numpy.add.reduce(ranks, axis=0, dtype=dtype)
    if op == Op.AVG:
        whole = numpy.issubdtype(result.dtype, numpy.integer)
        result = result // result.dtype.type(size) if whole else result.astype(numpy.float64) / size
    return numpy.asarray(result, dtype)


def assert_reduced(actual: Array, op: Op, size: int, what: str) -> None:
    """Compares with the expected reduction; means of floats may be rounded at another step, as each
    part is divided."""
    expected = reduced(op, size, actual.size, actual.dtype.name)
    if op == Op.AVG and numpy.issubdtype(actual.dtype, numpy.floating):
        tolerance = size * numpy.finfo(actual.dtype).eps
        numpy.testing.assert_allclose(actual, expected, rtol=tolerance, atol=0, err_msg=what)
    else:
        assert_same(actual, expected, what)


def assert_same(actual: Array, expected: Array, what: str) -> None:
    numpy.testing.assert_array_equal(actual, expected, err_msg=what)
