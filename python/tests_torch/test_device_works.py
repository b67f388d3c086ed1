"""How calls on a GPU notice their end, and failures before it: with stand-ins for work in a
stream."""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import threading
import unittest
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType, SimpleNamespace
from typing import TypeVar
from unittest import mock

import groups
import torch
import torch.distributed as dist

import spark_ccl
from spark_ccl import InvalidError
from spark_ccl.torch.delayed import Delayed
from spark_ccl.torch.device_work import DeviceWork, Enqueued
from spark_ccl.torch.devices import DeviceCalls

Calls = TypeVar("Calls", bound=DeviceCalls)


def calls_without_gpu(kind: type[Calls] = DeviceCalls) -> Calls:
    calls = object.__new__(kind)
    calls._order = threading.RLock()
    calls._waiting = []
    calls._batch = None
    calls._stream = mock.sentinel.stream
    calls._known = None
    calls._communicator = mock.Mock()
    calls._delayed = Delayed(calls._send, 0.01)
    return calls


def held(calls: DeviceCalls) -> DeviceWork:
    return calls._hold(DeviceWork(calls, [], [], None))


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    device = torch.device("cuda", 0)
    is_cuda, is_cpu = True, False
    __torch_function__ = torch._C._disabled_torch_function_impl

    recorded: list[object] = []

    def record_stream(self, stream: object) -> None:
        self.recorded.append(stream)


@contextlib.contextmanager
def counted_calls(asked: collections.Counter[str]) -> Iterator[None]:
    """Has stand-ins for what calls on a GPU ask PyTorch for, and counts the requests in `asked`."""
    current = mock.Mock()

    def stand_in(name: str, answer: object) -> mock._patch[object]:
        def function(*arguments: object) -> object:
            asked[name] += 1
            return answer

        return mock.patch(f"torch.cuda.{name}", function)

    answers = {
        "Event": mock.Mock(),
        "current_stream": current,
        "is_current_stream_capturing": False,
        "stream": contextlib.nullcontext(),
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(stand_in(name, answer))
        stack.enter_context(mock.patch("spark_ccl.torch.devices.current_handle", lambda index: 7))
        yield


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

    def test_messages_go_out_by_themselves(self) -> None:
        calls, launched = calls_without_gpu(), threading.Event()
        sent: list[DeviceWork] = []

        def launch(works: list[DeviceWork], stream: object) -> None:
            sent.extend(works)
            launched.set()

        with mock.patch.object(calls, "_launch", side_effect=launch):
            for _ in range(3):
                launched.clear()
                first, second = held(calls), held(calls)
                self.assertTrue(launched.wait(60))
                self.assertEqual(sent, [first, second])
                sent.clear()
            calls._delayed.close(60)

    def test_a_batch_goes_out_at_its_end(self) -> None:
        calls = calls_without_gpu()
        with mock.patch.object(calls, "_launch") as launch:
            calls.open_batch()
            held(calls)
            calls._send()
            launch.assert_not_called()
            calls.close_batch()
            launch.assert_called_once()

    def test_the_time_of_a_call_is_that_of_its_options(self) -> None:
        calls = calls_without_gpu()
        calls.device = torch.device("cuda", 0)
        options = dist.AllreduceOptions()
        patches = (
            mock.patch("spark_ccl.torch.devices.check_all_on"),
            mock.patch.object(calls, "current_stream"),
            mock.patch("torch.cuda.Event"),
        )
        with patches[0], patches[1], patches[2]:
            (usual,) = calls._start(options, "all_reduce", keep=())
            options.timeout = timedelta(seconds=3)
            (own,) = calls._start(options, "all_reduce", keep=())
        for one, timeout in ((usual, None), (own, 3.0)):
            assert isinstance(one, Enqueued)
            handle = mock.Mock()
            one.enqueue(handle, mock.Mock())
            self.assertEqual(handle.enqueue.call_args.kwargs["timeout"], timeout)

    def test_a_call_takes_few_functions(self) -> None:
        calls = calls_without_gpu()
        calls.device = OnGpu.device
        calls._stream = mock.Mock()
        package = os.path.dirname(spark_ccl.__file__)
        tensor = torch.ones(3).as_subclass(OnGpu)
        for is_async in (False, True):
            asked: collections.Counter[str] = collections.Counter()
            own: list[str] = []

            def note(frame: FrameType, event: str, argument: object, own: list[str] = own) -> None:
                if event == "call" and frame.f_code.co_filename.startswith(package):
                    own.append(frame.f_code.co_name)

            # Options of older versions of PyTorch have no `asyncOp`.
            options = SimpleNamespace(
                asyncOp=is_async,
                reduceOp=dist.ReduceOp.SUM,
                timeout=timedelta(0),
            )
            tensor.recorded.clear()
            calls._known = (7, mock.Mock())
            with counted_calls(asked):
                sys.setprofile(note)
                try:
                    calls.allreduce([tensor], options).wait()
                finally:
                    sys.setprofile(None)
            # An event after the call, and one before a call of another stream.
            expected = {
                "_exchange_device": 1,
                "is_current_stream_capturing": 1,
                "Event": 2 if is_async else 1,
                "_maybe_exchange_device": 1,
            }
            self.assertEqual(asked, expected)
            self.assertLessEqual(len(own), 38, own)
            # The current stream waits for a call of another one, which may use the tensor longer.
            current = calls._known[1]
            self.assertEqual(current.wait_event.called, is_async)
            self.assertEqual(tensor.recorded, [calls._stream] * 2 if is_async else [])

    def test_the_current_gpu_is_again_the_one_before(self) -> None:
        calls = calls_without_gpu()
        calls.device = OnGpu.device
        current = [3]

        def exchange(index: int) -> int:
            previous, current[0] = current[0], index
            return previous

        def refuse(handle: object, stream: object) -> None:
            self.assertEqual(current, [0])
            raise InvalidError("refused")

        # A call within another, which then fails.
        call = mock.Mock()
        call.get_ready = lambda stream: calls._launch([], stream)
        call.enqueue = refuse
        work = mock.Mock(started=[call])
        names = ("_exchange_device", "_maybe_exchange_device")
        with counted_calls(collections.Counter()), contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(mock.patch(f"torch.cuda.{name}", exchange))
            with self.assertRaises(InvalidError):
                calls._launch([work], mock.Mock())
        self.assertEqual(current, [3])

    def test_another_current_stream_is_asked_for(self) -> None:
        calls = calls_without_gpu()
        calls.device = OnGpu.device
        asked: collections.Counter[str] = collections.Counter()
        handles = iter([7, 7, 8, 7])
        told = mock.patch("spark_ccl.torch.devices.current_handle", lambda index: next(handles))
        with counted_calls(asked), told:
            for times in (1, 1, 2, 3):
                calls.current_stream()
                self.assertEqual(asked["current_stream"], times)

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
