"""The shared library and its functions. Knows C's types, and nothing of communicators."""

from __future__ import annotations

import ctypes
import operator
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from . import errors

Request = c_uint64

_ERRORS = {
    1: errors.InvalidError,
    2: errors.TimedOutError,
    3: errors.RemoteError,
    4: errors.SystemFailedError,
    5: errors.InternalError,
}


class UniqueIdBytes(ctypes.Structure):
    """`spark_ccl_unique_id`."""

    _fields_ = [("bytes", c_char * 128)]


class Setting(ctypes.Structure):
    """`spark_ccl_setting`."""

    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Options(ctypes.Structure):
    """`spark_ccl_options`."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("request", POINTER(Request)),
        ("name", c_char_p),
        ("factor", c_void_p),
        ("registered", c_int),
        ("stream", c_void_p),
        ("on_device", c_size_t),
        ("timeout", c_size_t),
    ]


_OPTIONS = POINTER(Options)
_COUNTS = POINTER(c_size_t)

# The arguments of each function that returns a `spark_ccl_result`.
_ARGUMENTS = {
    "get_unique_id": [POINTER(UniqueIdBytes)],
    "unique_id_to_text": [POINTER(UniqueIdBytes), c_char_p, c_size_t],
    "unique_id_from_text": [c_char_p, POINTER(UniqueIdBytes)],
    "comm_create": [POINTER(UniqueIdBytes), c_int, c_int, POINTER(Setting), c_size_t, POINTER(c_void_p)],
    "comm_from_env": [POINTER(Setting), c_size_t, POINTER(c_void_p)],
    "comm_split": [c_void_p, c_int, c_int, POINTER(c_void_p)],
    "comm_recover": [c_void_p, POINTER(c_void_p)],
    "comm_shrink": [c_void_p, POINTER(c_int), c_size_t, POINTER(c_void_p)],
    "comm_rank": [c_void_p, POINTER(c_int)],
    "comm_size": [c_void_p, POINTER(c_int)],
    "comm_set_timeout": [c_void_p, c_uint],
    "comm_check": [c_void_p],
    "comm_abort": [c_void_p, c_char_p],
    "comm_finalize": [c_void_p],
    "comm_destroy": [c_void_p],
    "all_reduce": [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, _OPTIONS],
    "reduce": [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, _OPTIONS],
    "broadcast": [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, _OPTIONS],
    "all_gather": [c_void_p, c_void_p, c_void_p, c_size_t, c_int, _OPTIONS],
    "reduce_scatter": [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, _OPTIONS],
    "gather": [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, _OPTIONS],
    "scatter": [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, _OPTIONS],
    "all_to_all": [c_void_p, c_void_p, c_void_p, c_size_t, c_int, _OPTIONS],
    "all_to_all_v": [c_void_p, c_void_p, _COUNTS, _COUNTS, c_void_p, _COUNTS, _COUNTS, c_int, _OPTIONS],
    "barrier": [c_void_p, _OPTIONS],
    "send": [c_void_p, c_void_p, c_size_t, c_int, c_int, _OPTIONS],
    "recv": [c_void_p, c_void_p, c_size_t, c_int, c_int, _OPTIONS],
    "comm_device": [c_void_p, POINTER(c_int)],
    "stream_wait": [c_void_p, c_void_p],
    "probe": [c_void_p, c_int, POINTER(c_size_t), POINTER(c_int), POINTER(c_int)],
    "group_start": [],
    "group_end": [],
    "wait": [POINTER(Request)],
    "test": [POINTER(Request), POINTER(c_int)],
}


def _load() -> ctypes.CDLL:
    path = Path(__file__).with_name("libspark_ccl.so")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"{error}; the wheel has this file, the sources have not: install the wheel, and start Python elsewhere"
        ) from None
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, f"spark_ccl_{name}")
        function.argtypes = arguments
        function.restype = c_int
    library.spark_ccl_last_error.argtypes = []
    library.spark_ccl_last_error.restype = c_char_p
    return library


_loaded = _load()

FUNCTIONS = {name: getattr(_loaded, f"spark_ccl_{name}") for name in _ARGUMENTS}


def call(name: str, *arguments: object) -> None:
    """Calls `spark_ccl_<name>` without the interpreter's lock, and raises what it reports."""
    check(FUNCTIONS[name](*arguments))


def check(result: int) -> None:
    """Raises an error if the last call of this thread failed."""
    if result != 0:
        text = _loaded.spark_ccl_last_error().decode(errors="replace")
        raise _ERRORS.get(result, errors.InternalError)(text)


def int_of(value: Any, name: str) -> int:
    """A number as C's `int`; raises `InvalidError` if `ctypes` would truncate it: 2**32 would be
    0."""
    number = operator.index(value)
    if not -(1 << 31) <= number < 1 << 31:
        raise errors.InvalidError(f"{name} is {number}; expected less than 2**31")
    return number


def read_int(name: str, handle: c_void_p) -> int:
    """The number that a function writes into an `int`."""
    value = c_int()
    call(name, handle, byref(value))
    return value.value
