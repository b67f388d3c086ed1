"""Accepted buffers, and the errors for others."""

from __future__ import annotations

import array
import unittest
from typing import Any

import numpy

from spark_ccl import Communicator, InvalidError, UniqueId


class OnlyDLPack:
    """An array without the buffer protocol, like tensors of frameworks."""

    def __init__(self, inner: Any, device: int = 1) -> None:
        self.inner = inner
        self.device = device

    def __dlpack__(self) -> Any:
        return self.inner.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


class Buffers(unittest.TestCase):
    comm: Communicator

    @classmethod
    def setUpClass(cls) -> None:
        cls.comm = Communicator(UniqueId(), 0, 1)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.comm.close()

    def refused(self, text: str, *arguments: Any, **options: Any) -> None:
        with self.assertRaisesRegex(InvalidError, text):
            self.comm.all_reduce(*arguments, **options)

    def test_kinds(self) -> None:
        received = numpy.zeros(3, numpy.int32)
        for sent in (
            numpy.array([1, 2, 3], numpy.int32),
            array.array("i", [1, 2, 3]),
            memoryview(array.array("i", [1, 2, 3])),
            OnlyDLPack(numpy.array([1, 2, 3], numpy.int32)),
            OnlyDLPack(numpy.array([[0], [1], [2], [3]], numpy.int32)[1:]),
        ):
            received[:] = 0
            self.comm.all_reduce(sent, received)
            self.assertEqual(received.tolist(), [1, 2, 3])

    def test_read_only_memory_is_sent_and_not_written(self) -> None:
        received = bytearray(2)
        self.comm.all_reduce(b"ab", received)
        self.assertEqual(received, b"ab")
        self.refused("send must be contiguous in C's order and writable", b"ab")
        self.refused("recv must be .* writable", received, b"ab")

    def test_memory_with_gaps(self) -> None:
        with_gaps = numpy.zeros((4, 4), numpy.float32)[:, :2]
        self.refused("send must be contiguous", with_gaps)
        self.refused("send must be contiguous", OnlyDLPack(with_gaps))

    def test_types_that_are_none(self) -> None:
        self.refused("format 'Zd'", numpy.zeros(2, numpy.complex128))
        self.refused("format '>f'", numpy.zeros(2, ">f4"))
        self.refused("2 bytes", numpy.zeros(2, numpy.int16))
        self.refused(r"format '\?'", numpy.zeros(2, bool))
        self.refused("DLPack's type 5", OnlyDLPack(numpy.zeros(2, numpy.complex64)))
        self.refused("type list", [1.0, 2.0])

    def test_memory_of_devices(self) -> None:
        self.refused("device of DLPack's type 2", OnlyDLPack(numpy.zeros(2), device=2))

    def test_lengths_that_do_not_fit(self) -> None:
        self.refused("send has 2 elements, and recv 3", numpy.zeros(2), numpy.zeros(3))
        self.refused("float64, and the other of float32", numpy.zeros(2), numpy.zeros(2, numpy.float32))
        with self.assertRaisesRegex(InvalidError, "expected 2 for each of 1 ranks, 2 in all"):
            self.comm.all_gather(numpy.zeros(2), numpy.zeros(3))
        with self.assertRaisesRegex(InvalidError, "send_counts are 3 elements in all, and send has 2"):
            self.comm.all_to_all_v(numpy.zeros(2), [3], numpy.zeros(3), [3])
        with self.assertRaisesRegex(InvalidError, r"recv_counts are \[1, 1\]"):
            self.comm.all_to_all_v(numpy.zeros(2), [2], numpy.zeros(2), [1, 1])
        with self.assertRaisesRegex(InvalidError, r"send_counts are \[-1\]"):
            self.comm.all_to_all_v(numpy.zeros(2), [-1], numpy.zeros(2), [2])

    def test_factors(self) -> None:
        self.refused("no int32", numpy.zeros(2, numpy.int32), factor=0.5)
        self.refused("no uint8", numpy.zeros(2, numpy.uint8), factor=256)

    def test_buffers_cannot_be_resized_while_they_are_sent(self) -> None:
        values = bytearray(100)
        work = self.comm.all_reduce(values, async_op=True)
        assert work is not None
        work.wait()
        values.append(0)


if __name__ == "__main__":
    unittest.main()
