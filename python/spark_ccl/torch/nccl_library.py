"""Which `libnccl.so.2` PyTorch uses: NVIDIA's, or this package's. Imports PyTorch only once that is
decided."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path

SWITCH = "SPARK_CCL_TORCH_NCCL"
OURS = Path(__file__).parents[1] / "libspark_nccl.so"
_USER = "lib/libtorch_cuda.so"


def load() -> None:
    """Loads this package's library before PyTorch loads NVIDIA's: the system's loader then takes
    it for both, since it has the same name."""
    if "torch" in sys.modules or why_not_wanted():
        return
    found = importlib.util.find_spec("torch")
    folders = (found.submodule_search_locations if found else None) or []
    # Without this library, PyTorch has no use for it.
    if any(Path(folder, _USER).exists() for folder in folders):
        ctypes.CDLL(str(OURS))


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
    if VERSION < (2, 11):
        return "PyTorch is older than 2.11"
    if not dist.is_nccl_available():
        return "PyTorch has no NCCL"
    if not is_ours():
        return "PyTorch was imported before spark_ccl.torch, and so has another libnccl.so.2"
    return ""


def is_ours() -> bool:
    """Whether the functions of NCCL that PyTorch calls are those of this package's library."""
    import torch

    user = Path(torch.__file__).parent / _USER
    # As the system's loader looks them up: first in what is global, as by LD_PRELOAD.
    for scope in (None, str(user)):
        try:
            library = ctypes.CDLL(scope, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue
        if hasattr(library, "ncclGetVersion"):
            return hasattr(library, "spark_nccl_version")
    return False
