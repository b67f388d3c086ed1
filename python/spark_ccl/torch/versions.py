"""Features that some versions of PyTorch lack."""

from __future__ import annotations

import torch

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
# Whether a backend in Python can be one of several of a group.
HAS_BACKENDS = VERSION >= (2, 15)
# Whether C++ keeps the Python part of works that it waits for, and whether a group is told when it
# is destroyed.
KEEPS_WORKS = TELLS_OF_END = VERSION >= (2, 7)

if VERSION < (2, 4):
    raise ImportError(f"spark_ccl.torch needs PyTorch 2.4 or newer, and this is {torch.__version__}")
