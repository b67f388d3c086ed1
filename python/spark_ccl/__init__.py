"""Collective communication between the ranks of a job, for NumPy arrays and other buffers.

    import numpy, spark_ccl

    with spark_ccl.Communicator.from_env() as comm:
        values = numpy.full(4, comm.rank, dtype=numpy.float32)
        comm.all_reduce(values)

Start it with torchrun, mpirun or srun.
"""

from .communicator import Communicator
from .errors import (
    Error,
    InternalError,
    InvalidError,
    RemoteError,
    SystemFailedError,
    TimedOutError,
)
from .groups import group
from .types import DType, Op
from .unique_id import UniqueId
from .work import Work

__all__ = [
    "Communicator",
    "DType",
    "Error",
    "InternalError",
    "InvalidError",
    "Op",
    "RemoteError",
    "SystemFailedError",
    "TimedOutError",
    "UniqueId",
    "Work",
    "group",
]
