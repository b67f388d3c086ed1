"""The package's library with NCCL's ABI."""

from __future__ import annotations

import ctypes
import os
import unittest
from pathlib import Path

import spark_ccl


class InThePackage(unittest.TestCase):
    def test_it_takes_the_place_of_nccl(self) -> None:
        path = Path(spark_ccl.__file__).with_name("libspark_nccl.so")
        ctypes.CDLL(str(path))
        # What the system's loader finds for programs that want NCCL.
        found = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        version = ctypes.c_int()
        self.assertEqual(found.ncclGetVersion(ctypes.byref(version)), 0)
        self.assertEqual(version.value, 23203)
        found.spark_nccl_version.restype = ctypes.c_char_p
        self.assertRegex(found.spark_nccl_version(), rb"^\d+\.\d+\.\d+")


if __name__ == "__main__":
    unittest.main()
