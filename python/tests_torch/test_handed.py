"""Which calls on a GPU go to PyTorch's process group for NCCL, and when: with stand-ins for it, for
its library, and for work on a GPU."""

from __future__ import annotations

import collections
import contextlib
import functools
import unittest
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import groups
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from test_device_works import OnGpu, calls_without_gpu, counted_calls, held
from test_training import losses, losses_of, model
from torch.nn.parallel import DistributedDataParallel

from spark_ccl import InvalidError, RemoteError
from spark_ccl.torch import handed
from spark_ccl.torch.calls import Calls
from spark_ccl.torch.devices import DeviceCalls
from spark_ccl.torch.handed import HandedCalls

SIZE = 2
MINUTE = timedelta(seconds=60)


def handed_calls() -> HandedCalls:
    calls = calls_without_gpu(HandedCalls)
    calls.device = OnGpu.device
    calls._rank, calls._size = 0, SIZE
    calls._timeout = timedelta(seconds=0.2)
    calls._last = None
    calls._nccl = mock.Mock()
    for name in (
        "allreduce",
        "broadcast",
        "_allgather_base",
        "_reduce_scatter_base",
        "alltoall_base",
    ):
        getattr(calls._nccl, name).side_effect = work_of
    calls._handed = calls._handed_in = None
    calls._made = 7
    return calls


def work_of(*arguments: Any) -> Any:
    """What PyTorch's group for NCCL answers: a call in the current stream has no work."""
    return mock.DEFAULT if getattr(arguments[-1], "asyncOp", True) else None


def is_same(seen: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return seen.data_ptr() == wanted.data_ptr() and seen.numel() == wanted.numel()
    return seen is wanted or seen == wanted


def on_gpu(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype).as_subclass(OnGpu)


def asks(
    op: Any = dist.ReduceOp.SUM,
    timeout: timedelta = timedelta(0),
    is_async: bool = True,
) -> Any:
    """The options of a call."""
    op = dist.ReduceOp(op)
    return SimpleNamespace(asyncOp=is_async, reduceOp=op, timeout=timeout, rootRank=1)


@contextlib.contextmanager
def enqueued(calls: DeviceCalls) -> Iterator[list[str]]:
    """The functions of this library that calls enqueue meanwhile."""
    names: list[str] = []

    def launch(works: Any, stream: object, has_begun_now: bool = False) -> None:
        names.extend(call._call[0] for work in works for call in work.started)
        for work in works:
            work.finish()
            work.was_enqueued(mock.Mock(), stream)

    with (
        counted_calls(collections.Counter()),
        mock.patch.object(calls, "_launch", side_effect=launch),
        failing(""),
    ):
        yield names


def failing(reason: str) -> Any:
    """The library says that the group of PyTorch's has failed, or not."""
    return mock.patch.object(handed, "failure_of", return_value=reason)


class Routes(unittest.TestCase):
    def test_common_calls_are_handed_on(self) -> None:
        short, long, opts = on_gpu(3), on_gpu(3 * SIZE), asks()
        for made, name, expected in (
            (lambda calls: calls.allreduce([short], opts), "allreduce", ([short], opts)),
            (lambda calls: calls.broadcast([short], opts), "broadcast", ([short], opts)),
            (
                lambda calls: calls.all_gather_single(long, short, opts),
                "_allgather_base",
                (long, short, opts),
            ),
            (lambda calls: calls._allgather_base(long, short), "_allgather_base", (long, short)),
            (
                lambda calls: calls.reduce_scatter_single(short, long, opts),
                "_reduce_scatter_base",
                (short, long, opts),
            ),
            (
                lambda calls: calls._reduce_scatter_base(short, long, opts),
                "_reduce_scatter_base",
                (short, long, opts),
            ),
            (
                lambda calls: calls.alltoall_base(long, other, [], [], opts),
                "alltoall_base",
                (long, other := on_gpu(3 * SIZE), [], [], opts),
            ),
        ):
            with self.subTest(name):
                calls = handed_calls()
                with enqueued(calls) as names:
                    work = made(calls)
                function = getattr(calls._nccl, name)
                self.assertIs(work._work, function.return_value)
                self.assertEqual(len(calls._nccl.mock_calls), 1)
                for seen, wanted in zip(function.call_args.args, expected):
                    self.assertTrue(is_same(seen, wanted), name)
                self.assertEqual(names, [])

    def test_common_reductions_are_handed_on(self) -> None:
        for op in (
            dist.ReduceOp.SUM,
            dist.ReduceOp.AVG,
            dist.ReduceOp.MAX,
            dist.ReduceOp.MIN,
            dist.ReduceOp.PRODUCT,
        ):
            calls = handed_calls()
            with enqueued(calls):
                calls.allreduce([on_gpu(3)], asks(op))
            calls._nccl.allreduce.assert_called_once()

    def test_others_are_not(self) -> None:
        short, long = on_gpu(3), on_gpu(3 * SIZE)
        integers, booleans = on_gpu(3, torch.int32), on_gpu(3, torch.bool)
        for what, made, name in (
            (
                "bits",
                lambda calls: calls.allreduce([integers], asks(dist.ReduceOp.BXOR)),
                "all_gather",
            ),
            ("booleans", lambda calls: calls.allreduce([booleans], asks()), "all_reduce"),
            ("a time", lambda calls: calls.allreduce([short], asks(timeout=MINUTE)), "all_reduce"),
            (
                "a time to move",
                lambda calls: calls.broadcast([short], asks(timeout=MINUTE)),
                "broadcast",
            ),
            (
                "uneven",
                lambda calls: calls.alltoall_base(long, on_gpu(6), [3, 3], [2, 4]),
                "all_to_all_v",
            ),
            ("reduce", lambda calls: calls.reduce([short], asks()), "reduce"),
            (
                "several",
                lambda calls: calls.allreduce_coalesced([short, on_gpu(3)], asks()),
                "all_reduce",
            ),
        ):
            with self.subTest(what):
                calls = handed_calls()
                # Stand-ins do not pass their place on to the tensors that are made of them.
                with enqueued(calls) as names, mock.patch("spark_ccl.torch.devices.check_all_on"):
                    made(calls)
                self.assertEqual(names[0], name)
                self.assertEqual(calls._nccl.mock_calls, [])

    def test_a_batch_is_of_one_kind(self) -> None:
        calls = handed_calls()
        with enqueued(calls) as names:
            calls.open_batch()
            calls.allreduce([on_gpu(3)], asks())
            calls.close_batch()
        self.assertEqual(names, ["all_reduce"])
        self.assertEqual(calls._nccl.mock_calls, [])

    def test_what_is_not_contiguous_is_handed_on_as_a_copy(self) -> None:
        calls = handed_calls()
        whole = torch.arange(6.0).view(2, 3)
        tensor = whole.t().as_subclass(OnGpu)

        def add(tensors: list[torch.Tensor], opts: object) -> Any:
            self.assertTrue(tensors[0].is_contiguous())
            tensors[0].mul_(2)
            return work

        work = mock.Mock()
        calls._nccl.allreduce = add
        with enqueued(calls):
            done = calls.allreduce([tensor], asks())
        work.block_current_stream.assert_called_once_with()
        self.assertEqual(whole.flatten().tolist(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0])
        self.assertEqual(len(done.results), 1)

    def test_shared_memory_is_handed_on_as_a_copy(self) -> None:
        calls, memory = handed_calls(), on_gpu(3 * SIZE)
        with enqueued(calls), mock.patch.object(handed, "check_all_on"):
            # Not in place: that of rank 0 is the first block.
            calls.all_gather_single(memory, memory[3:], asks())
            output, given, _ = calls._nccl._allgather_base.call_args.args
        self.assertIs(output, memory)
        self.assertNotEqual(given.data_ptr(), memory[3:].data_ptr())

    def test_wrong_arguments_are_refused_before(self) -> None:
        calls = handed_calls()
        short, away = on_gpu(3), torch.ones(3)
        negative = torch._neg_view(torch.ones(3)).as_subclass(OnGpu)
        for made, said in (
            (lambda: calls.all_gather_single(on_gpu(5), short, asks()), "expected 6"),
            (lambda: calls.all_gather_single(on_gpu(6), away, asks()), "is on cpu"),
            (lambda: calls.reduce_scatter_single(short, on_gpu(7), asks()), "expected 6"),
            (lambda: calls.alltoall_base(on_gpu(4), on_gpu(6), [], [], asks()), "output 4"),
            (lambda: calls.allreduce([short, short], asks()), "2 tensors"),
            (
                lambda: calls.allreduce([negative], asks()),
                "negative",
            ),
        ):
            with enqueued(calls), self.assertRaisesRegex(InvalidError, said):
                made()
        self.assertEqual(calls._nccl.mock_calls, [])

    def test_messages_go_out_before(self) -> None:
        calls, order = handed_calls(), []
        # They do not go out by themselves.
        calls._delayed = mock.Mock()
        calls._nccl.allreduce.side_effect = lambda *arguments: order.append("allreduce")
        with (
            enqueued(calls),
            mock.patch.object(calls, "flush", side_effect=lambda: order.append("flush")),
        ):
            held(calls)
            calls.allreduce([on_gpu(3)], asks())
        self.assertEqual(order, ["flush", "allreduce"])


class Ends(unittest.TestCase):
    def test_a_failure_ends_the_group_and_says_who(self) -> None:
        calls = handed_calls()
        calls._nccl.allreduce.side_effect = dist.DistBackendError("NCCL error")
        with enqueued(calls):
            with self.assertRaisesRegex(dist.DistBackendError, "NCCL error"):
                calls.allreduce([on_gpu(3)], asks())
            # Others may wait for this rank in a kernel of either.
            calls._nccl.abort.assert_called_once_with()
            calls._communicator.abort.assert_called_once()
            self.assertIn("NCCL error", calls._communicator.abort.call_args.args[0])
            died = RemoteError("rank 1 has died")
            calls._communicator.check.side_effect = [None, died]
            with self.assertRaisesRegex(RemoteError, "rank 1"):
                calls.allreduce([on_gpu(3)], asks())
            # Known before: nothing is handed on.
            calls._nccl.reset_mock()
            calls._communicator.check.side_effect = died
            with self.assertRaisesRegex(RemoteError, "rank 1"):
                calls.allreduce([on_gpu(3)], asks())
        self.assertEqual(calls._nccl.mock_calls, [])

    def test_a_barrier_waits_for_handed_calls_and_raises_what_has_failed(self) -> None:
        calls = handed_calls()
        with enqueued(calls):
            work = calls.allreduce([on_gpu(3)], asks())
        self.assertIs(calls._handed, work)
        with (
            mock.patch.object(DeviceCalls, "wait_for_all") as streams,
            mock.patch.object(calls, "current_stream"),
            failing(""),
        ):
            calls.wait_for_all(MINUTE)
            streams.assert_called_once_with(MINUTE)
            work._work.block_current_stream.assert_called_once_with()
            # The work keeps its memory, and has run.
            self.assertIsNone(calls._handed)
            with failing("rank 1 died"), self.assertRaisesRegex(RemoteError, "rank 1 died"):
                calls.wait_for_all(MINUTE)

    def test_works_and_later_calls_raise_what_has_failed(self) -> None:
        calls = handed_calls()
        with enqueued(calls):
            work = calls.allreduce([on_gpu(3)], asks())
        with failing("rank 1 died"):
            with self.assertRaisesRegex(RemoteError, "rank 1 died"):
                work.wait()
            work._work.block_current_stream.assert_called_once_with()
            self.assertTrue(work.is_completed())
            self.assertFalse(work.is_success())
            self.assertIsInstance(work.exception(), RemoteError)
            with self.assertRaisesRegex(RemoteError, "rank 1 died"):
                calls._launch([], mock.sentinel.stream)

    def test_a_call_in_the_current_stream_is_waited_for_by_its_stream(self) -> None:
        calls, opts = handed_calls(), asks(is_async=False)
        transposed = torch.arange(6.0).view(2, 3).t().as_subclass(OnGpu)
        first, second = mock.Mock(), mock.Mock()
        with enqueued(calls), mock.patch.object(calls, "current_stream", return_value=first):
            self.assertIsNone(calls.allreduce([on_gpu(3)], opts))
            self.assertEqual(len(calls.allreduce([transposed], opts).results), 1)
        self.assertIsNone(calls._handed)
        with mock.patch.object(DeviceCalls, "wait_for_all"), failing(""):
            with mock.patch.object(calls, "current_stream", return_value=first):
                calls.wait_for_all(MINUTE)
            first.wait_stream.assert_not_called()
            with mock.patch.object(calls, "current_stream", return_value=second):
                calls.wait_for_all(MINUTE)
            second.wait_stream.assert_called_once_with(first)
        first.query.side_effect = [False, False, True]
        calls.close()
        self.assertEqual(first.query.call_count, 3)

    def test_calls_of_a_graph_are_not_waited_for(self) -> None:
        calls = handed_calls()
        with (
            enqueued(calls),
            mock.patch("torch.cuda.is_current_stream_capturing", return_value=True),
        ):
            calls.allreduce([on_gpu(3)], asks())
            calls.allreduce([on_gpu(3)], asks(is_async=False))
        self.assertIsNone(calls._handed)
        self.assertIsNone(calls._handed_in)

    def test_the_end_waits_for_handed_calls_and_then_leaves(self) -> None:
        calls = handed_calls()
        work = calls._handed = mock.Mock()
        work.is_completed.side_effect = [False, False, True]
        calls.close()
        self.assertEqual(work.is_completed.call_count, 3)
        self.assertEqual(calls._nccl.mock_calls, [mock.call.abort()])

    def test_the_end_does_not_wait_longer_than_the_timeout(self) -> None:
        calls = handed_calls()
        calls._handed = mock.Mock(is_completed=lambda: False)
        calls.close()
        calls._nccl.abort.assert_called_once_with()

    def test_times_and_aborts_are_passed_on(self) -> None:
        calls = handed_calls()
        with mock.patch.object(handed, "set_timeout") as set_timeout:
            calls.set_timeout(MINUTE)
        set_timeout.assert_called_once_with(7, 60_000)
        calls.abort()
        calls._communicator.abort.assert_called_once_with("the process group was aborted")
        calls._nccl.abort.assert_called_once_with()


class Divided:
    """The calls that are handed on, and all others of a group as on the CPU."""

    def __init__(self, calls: HandedCalls, group: Any) -> None:
        self._calls, self._group = calls, group

    def __getattr__(self, name: str) -> Any:
        if name in vars(HandedCalls):
            return getattr(self._calls, name)
        return functools.partial(getattr(Calls, name), self._group)


def wait_on_cpu(work: Any, timeout: timedelta | None = None) -> bool:
    done: bool = work._work.wait()
    return done


def by_gloo() -> list[float]:
    """Losses of a training whose calls, on the CPU, are handed to PyTorch's group for gloo."""
    group: Any = dist.group.WORLD
    rank, size = dist.get_rank(), dist.get_world_size()
    calls = handed_calls()
    store = dist.PrefixStore("gloo", dist.distributed_c10d._get_default_store())
    calls._nccl = dist.ProcessGroupGloo(store, rank, size, MINUTE)
    calls.device, calls._rank, calls._size = torch.device("cpu"), rank, size
    divided = Divided(calls, group)
    here = mock.patch.object(type(group), "_calls_for", lambda group, arguments: divided)
    # On the CPU, no stream waits.
    waits = mock.patch.object(handed.HandedWork, "wait", wait_on_cpu)
    captures = mock.patch("torch.cuda.is_current_stream_capturing", return_value=False)
    with here, waits, captures, failing(""):
        layers = DistributedDataParallel(model(), bucket_cap_mb=0.01)
        found = losses_of(layers, torch.device("cpu"))
        assert calls._handed, "nothing was handed on"
        whole = torch.empty(3 * size)
        dist.all_gather_into_tensor(whole, torch.full((3,), float(rank)))
        assert whole.tolist() == [float(place // 3) for place in range(3 * size)]
        assert funcol.all_reduce(torch.ones(3), "sum", group).tolist() == [float(size)] * 3
    return found


class Works(unittest.TestCase):
    @groups.since(2, 11)
    def test_those_of_pytorch_pass_through_its_training(self) -> None:
        for found, expected in zip(groups.run(by_gloo, 2), groups.run(losses, 2)):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
