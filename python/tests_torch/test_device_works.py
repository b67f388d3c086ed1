"""What calls on a GPU know of their end, and of failures before it: with stand-ins for what would be in a stream."""

from __future__ import annotations

import threading
import unittest
from types import SimpleNamespace
from unittest import mock

import groups
import torch
import torch.distributed as dist

from spark_ccl import InvalidError
from spark_ccl.torch.device_work import DeviceWork
from spark_ccl.torch.devices import DeviceCalls


def calls_without_gpu() -> DeviceCalls:
    calls = object.__new__(DeviceCalls)
    calls._order = threading.RLock()
    calls._waiting = []
    calls._batch = None
    calls._stream = mock.sentinel.stream
    calls._communicator = mock.Mock()
    return calls


def held(calls: DeviceCalls) -> DeviceWork:
    return calls._hold(DeviceWork(calls, [], [], None))


class Works(unittest.TestCase):
    def test_all_know_that_they_could_not_be_enqueued(self) -> None:
        calls = calls_without_gpu()
        refused = InvalidError("refused")
        with mock.patch.object(calls, "_launch", side_effect=refused):
            first, second = held(calls), held(calls)
            with self.assertRaises(InvalidError):
                first.wait()
        for work in (first, second):
            self.assertTrue(work.is_completed())
            self.assertFalse(work.is_success())
            self.assertIs(work.exception(), refused)
            with self.assertRaises(InvalidError):
                work.wait()
            with self.assertRaises(InvalidError):
                work.get_future()

    def test_a_batch_ends_with_its_last_call_also_if_it_was_enqueued_before(self) -> None:
        calls = calls_without_gpu()
        ends = iter([mock.sentinel.first, mock.sentinel.second])

        def launch(works: list[DeviceWork], stream: object) -> None:
            end = next(ends)
            for work in works:
                work.was_enqueued(end, stream)

        with mock.patch.object(calls, "_launch", side_effect=launch):
            calls.open_batch()
            held(calls)
            calls.flush()
            held(calls)
            whole = calls.close_batch()
            self.assertIs(whole._end, mock.sentinel.second)
            calls.open_batch()
            self.assertIsNone(calls.close_batch()._end)

    def test_messages_go_out_before_a_call_on_the_cpu(self) -> None:
        groups.run(a_call_beside_messages, 2)


def a_call_beside_messages() -> None:
    world = dist.group.WORLD
    backend = world if hasattr(world, "_gpu") else world._get_backend(torch.device("cpu"))
    flush = mock.Mock()
    backend._gpu.calls = SimpleNamespace(flush=flush)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    backend._gpu.calls = None
    flush.assert_called_once_with()
    assert tensor.tolist() == [2.0] * 3


if __name__ == "__main__":
    unittest.main()
