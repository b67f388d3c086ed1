"""PyTorch's collectives on tensors on the CPU and on GPUs, by spark-ccl.

    import spark_ccl.torch
    import torch.distributed as dist

    dist.init_process_group("spark_ccl")

Everything else works as with gloo: torchrun, DistributedDataParallel, `dist.all_reduce` and the
like, new groups. Ranks find each other through PyTorch's own store. Calls on a GPU are ordered
in streams as with NCCL's backend; they are fastest if this is imported before `torch`. Needs
PyTorch 2.4 or newer.
"""

from __future__ import annotations

from . import nccl_library

nccl_library.load()

import torch.distributed as dist  # noqa: E402

from . import versions  # noqa: E402, F401  (first: it refuses what is too old)
from .process_group import PartOfGroup, ProcessGroup, create  # noqa: E402
from .rendezvous import NAME  # noqa: E402

__all__ = ["PartOfGroup", "ProcessGroup"]

dist.Backend.register_backend(NAME, create, devices=["cpu", "cuda"], extended_api=True)
