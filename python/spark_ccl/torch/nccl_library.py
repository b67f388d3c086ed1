"""Which `libnccl.so.2` PyTorch uses: NVIDIA's, or this package's. Imports PyTorch only once that is
decided."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

SWITCH = "SPARK_CCL_TORCH_NCCL"
OURS = Path(__file__).parents[1] / "libspark_nccl.so"
_USER = "lib/libtorch_cuda.so"
_OLDEST = (2, 11)
# Of `ncclResult_t`.
_SUCCESS, _IN_PROGRESS = 0, 7


def load() -> None:
    """Loads this package's library before PyTorch loads NVIDIA's: the system's loader then takes
    it for both, since it has the same name."""
    if "torch" in sys.modules or why_not_wanted():
        return
    found = importlib.util.find_spec("torch")
    folders = (found.submodule_search_locations if found else None) or []
    # Without this library, PyTorch has no use for it.
    if _is_new_enough() and any(Path(folder, _USER).exists() for folder in folders):
        # Where it cannot be loaded, calls are made in Python.
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(OURS))


def _is_new_enough() -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        version = importlib.metadata.version("torch").split(".")
        return tuple(int(part) for part in version[:2]) >= _OLDEST
    return False


def why_not_wanted() -> str:
    """Why PyTorch is not to use this package's library; empty if it is."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    backend = os.environ.get("SPARK_CCL_BACKEND", "").lower()
    return "" if backend in ("", "auto", "engine") else f"SPARK_CCL_BACKEND is {backend}"


def why_not_used() -> str:
    """Why PyTorch does not make calls with this package's library; empty if it does."""
    import torch.distributed as dist

    from .versions import VERSION

    if reason := why_not_wanted():
        return reason
    if VERSION < _OLDEST:
        return "PyTorch is older than 2.11"
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        return "TORCH_DISTRIBUTED_DEBUG is DETAIL"
    if not dist.is_nccl_available():
        return "PyTorch has no NCCL"
    if not is_ours():
        return "PyTorch calls another libnccl.so.2: import spark_ccl.torch before torch"
    return ""


def is_ours() -> bool:
    """Whether the functions of NCCL that PyTorch calls are those of this package's library."""
    serving = _serving()
    return serving is not None and hasattr(serving, "spark_nccl_version")


def failure_of(communicator: int) -> str:
    """Why a communicator of PyTorch's, by its address, has failed; empty if it has not."""
    serving = _serving()
    assert serving is not None, "it has made the communicator"
    state, at = ctypes.c_int(), ctypes.c_void_p(communicator)
    refused = serving.ncclCommGetAsyncError(at, ctypes.byref(state))
    if refused == _SUCCESS and state.value in (_SUCCESS, _IN_PROGRESS):
        return ""
    serving.ncclGetLastError.restype = ctypes.c_char_p
    text: bytes = serving.ncclGetLastError(at)
    return text.decode(errors="replace")


def set_timeout(communicator: int, milliseconds: int) -> None:
    """How long each later call of a communicator of PyTorch's, by its address, may take."""
    serving = _serving()
    assert serving is not None, "it has made the communicator"
    serving.spark_nccl_set_timeout(ctypes.c_void_p(communicator), ctypes.c_uint(milliseconds))


@functools.cache
def _serving() -> ctypes.CDLL | None:
    """The library whose functions of NCCL PyTorch calls."""
    import torch

    user = Path(torch.__file__).parent / _USER
    # As the system's loader looks them up: first in what is global, as by LD_PRELOAD.
    for scope in (None, str(user)):
        try:
            library = ctypes.CDLL(scope, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue
        if hasattr(library, "ncclGetVersion"):
            return library
    return None
