"""PyTorch's collectives on tensors on the CPU and on GPUs, by spark-ccl.

    import torch.distributed as dist
    import spark_ccl.torch

    dist.init_process_group("spark_ccl")

Everything else works as with gloo: torchrun, DistributedDataParallel, `dist.all_reduce` and the
like, new groups. Ranks find each other through PyTorch's own store. Calls on a GPU are ordered
in streams as with NCCL's backend. Needs PyTorch 2.4 or newer.
"""

from __future__ import annotations

import torch.distributed as dist

from . import versions  # noqa: F401  (first: it refuses what is too old)
from .process_group import PartOfGroup, ProcessGroup, create
from .rendezvous import NAME

__all__ = ["PartOfGroup", "ProcessGroup"]

dist.Backend.register_backend(NAME, create, devices=["cpu", "cuda"], extended_api=True)
