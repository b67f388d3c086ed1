"""Finds the elements of an argument with the buffer protocol (NumPy, array, bytearray) or with
DLPack.

Knows memory layouts, and nothing of communicators.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_ssize_t,
    c_uint8,
    c_uint16,
    c_uint64,
    c_void_p,
    py_object,
)
from typing import Any

from .errors import InvalidError
from .types import DType


class Buffer:
    """Memory of `count` elements from `pointer` on. It does not move as long as this object
    lives."""

    __slots__ = ("_holder", "count", "dtype", "pointer")

    def __init__(self, pointer: int, count: int, dtype: DType, holder: object) -> None:
        self.pointer = pointer
        self.count = count
        self.dtype = dtype
        self._holder = holder


def buffer_of(argument: Any, name: str, *, writable: bool) -> Buffer:
    """The memory of an argument called `name`; raises `InvalidError` if no call can use it."""
    # NumPy's arrays have both; its DLPack refuses read-only arrays.
    if hasattr(argument, "__dlpack__") and not _check_buffer(argument):
        return _of_dlpack(argument, name)
    return _of_buffer_protocol(argument, name, writable)


# The buffer protocol. Its structure is part of Python's stable interface since 3.11, and has been
# the same since 3.0.


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


_WRITABLE = 0x0001
_FORMAT = 0x0004
# With shapes and strides, as C orders elements.
_C_CONTIGUOUS = 0x0008 | 0x0010 | 0x0020

_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [py_object, POINTER(_PyBuffer), c_int]
_get_buffer.restype = c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [POINTER(_PyBuffer)]
_release_buffer.restype = None
_check_buffer = ctypes.pythonapi.PyObject_CheckBuffer
_check_buffer.argtypes = [py_object]
_check_buffer.restype = c_int


class _View:
    """Keeps an exported buffer, so that its owner neither frees nor moves it."""

    # Here: when Python ends, modules may be gone before their objects.
    _release = _release_buffer

    def __init__(self, owner: Any, flags: int) -> None:
        self.raw = _PyBuffer()
        _get_buffer(owner, ctypes.byref(self.raw), flags)

    def __del__(self) -> None:
        # Does nothing if there is no buffer.
        self._release(self.raw)


def _of_buffer_protocol(argument: Any, name: str, writable: bool) -> Buffer:
    flags = _FORMAT | _C_CONTIGUOUS | (_WRITABLE if writable else 0)
    try:
        view = _View(argument, flags)
    except TypeError:
        raise InvalidError(
            f"{name} is of type {type(argument).__name__}, which has neither the buffer protocol nor DLPack; "
            "pass a NumPy array, for instance"
        ) from None
    except (BufferError, ValueError) as error:
        wanted = "contiguous in C's order" + (" and writable" if writable else "")
        raise InvalidError(f"{name} must be {wanted}: {error}") from None
    raw = view.raw
    dtype = _of_format((raw.format or b"B").decode(), raw.itemsize, name)
    return Buffer(raw.buf or 0, raw.len // dtype.itemsize, dtype, view)


_SIGNED = {1: DType.INT8, 4: DType.INT32, 8: DType.INT64}
_UNSIGNED = {1: DType.UINT8, 4: DType.UINT32, 8: DType.UINT64}
_FLOATS = {2: DType.FLOAT16, 4: DType.FLOAT32, 8: DType.FLOAT64}


def _of_format(text: str, itemsize: int, name: str) -> DType:
    native = "<" if sys.byteorder == "little" else ">"
    code = text[1:] if text[:1] in ("@", "=", native) else text
    if code in ("b", "h", "i", "l", "q", "n"):
        dtype = _SIGNED.get(itemsize)
    elif code in ("B", "c", "H", "I", "L", "Q", "N"):
        dtype = _UNSIGNED.get(itemsize)
    elif code in ("e", "f", "d"):
        dtype = _FLOATS.get(itemsize)
    else:
        dtype = None
    if dtype is None:
        raise _unknown(name, f"format {text!r} ({itemsize} bytes)")
    return dtype


def _unknown(name: str, seen: str) -> InvalidError:
    known = ", ".join(dtype.name.lower() for dtype in DType)
    return InvalidError(
        f"{name} has elements of {seen}; expected one of {known}. What is only moved may go as bytes, such as "
        "array.view(numpy.uint8)"
    )


# DLPack, as its header `dlpack.h` declares it (versions below 1.0, which all producers still
# speak).


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


_CPU = 1
_OF_DLPACK = {
    (0, 8): DType.INT8,
    (0, 32): DType.INT32,
    (0, 64): DType.INT64,
    (1, 8): DType.UINT8,
    (1, 32): DType.UINT32,
    (1, 64): DType.UINT64,
    (2, 16): DType.FLOAT16,
    (2, 32): DType.FLOAT32,
    (2, 64): DType.FLOAT64,
    (4, 16): DType.BFLOAT16,
    (10, 8): DType.FLOAT8_E4M3,
    (12, 8): DType.FLOAT8_E5M2,
}

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [py_object, c_char_p]
_capsule_pointer.restype = c_void_p


def _of_dlpack(argument: Any, name: str) -> Buffer:
    device = int(argument.__dlpack_device__()[0])
    if device != _CPU:
        raise InvalidError(f"{name} is on a device of DLPack's type {device}; expected host memory (type {_CPU})")
    try:
        capsule = argument.__dlpack__()
    except (BufferError, RuntimeError, TypeError) as error:
        raise InvalidError(f"{name} cannot be exported by DLPack: {error}") from None
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    dtype = _OF_DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise _unknown(name, f"DLPack's type {tensor.code} of {tensor.bits} bits x {tensor.lanes}")
    shape = [tensor.shape[axis] for axis in range(tensor.ndim)]
    count = 1
    for length in shape:
        count *= length
    if tensor.strides and count > 0:
        expected = count
        for axis, length in enumerate(shape):
            expected //= length
            if length > 1 and tensor.strides[axis] != expected:
                raise InvalidError(f"{name} must be contiguous in C's order")
    # The capsule frees the export with itself, as it was not consumed.
    return Buffer((tensor.data or 0) + tensor.byte_offset, count, dtype, capsule)
