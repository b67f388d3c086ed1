"""When calls on a GPU go to PyTorch's process group for NCCL: what the ranks agree on, and whose
library serves; with stand-ins."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from test_handed import MINUTE

from spark_ccl.torch import handed, nccl_library
from spark_ccl.torch.devices import DeviceCalls
from spark_ccl.torch.handed import HandedCalls, connect


class Meeting:
    """Ranks, each in a thread, that connect their GPUs, with stand-ins for these."""

    def __init__(self, reasons: list[str], store: Any) -> None:
        self.reasons, self.store = reasons, store
        self.is_ours = False
        self.backends: list[str] = []
        self.groups: list[tuple[Any, int, int, dict[str, str | None]]] = []
        self.made: list[Any] = [None] * len(reasons)

    def connect(self) -> list[DeviceCalls]:
        ranks = range(len(self.reasons))
        threads = [threading.Thread(target=self._rank, args=(rank,)) for rank in ranks]
        group = mock.Mock(side_effect=self._group)
        rendezvous = "spark_ccl.torch.rendezvous"
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(handed, "why_not_used", self._reason))
            stack.enter_context(mock.patch.object(handed, "is_ours", lambda: self.is_ours))
            stack.enter_context(mock.patch(f"{rendezvous}.Communicator", self._communicator))
            stack.enter_context(mock.patch.object(dist, "ProcessGroupNCCL", group, create=True))
            stack.enter_context(mock.patch("torch.cuda.Stream"))
            stack.enter_context(mock.patch("torch.cuda.device"))
            set_now = stack.enter_context(mock.patch.object(handed, "set_timeout"))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        self.timeouts = [call.args for call in set_now.call_args_list]
        return self.made

    def _rank(self, rank: int) -> None:
        threading.current_thread().name = str(rank)
        device = torch.device("cuda", rank)
        self.made[rank] = connect(self.store, rank, len(self.reasons), MINUTE, device)

    def _reason(self) -> str:
        return self.reasons[int(threading.current_thread().name)]

    def _communicator(self, unique_id: object, rank: int, size: int, **settings: str) -> Any:
        self.backends.append(settings["backend"])
        return mock.Mock(rank=rank, size=size)

    def _group(self, store: Any, rank: int, size: int, options: Any) -> Any:
        set_now = {name: os.environ.get(name) for name in handed._SETTINGS}
        self.groups.append((store, rank, size, set_now))
        assert options._timeout == MINUTE
        return mock.Mock(_comm_ptr=lambda: rank)


class Agreement(unittest.TestCase):
    def setUp(self) -> None:
        kept = mock.patch.dict(os.environ, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"})
        kept.start()
        self.addCleanup(kept.stop)
        os.environ.pop("SPARK_CCL_BACKEND", None)

    def test_all_ranks_hand_on_where_all_can(self) -> None:
        store = dist.HashStore()
        found = []
        for _ in range(2):
            meeting = Meeting([""] * 3, store)
            made = meeting.connect()
            self.assertTrue(all(type(one) is HandedCalls for one in made))
            self.assertEqual(meeting.backends, ["engine"] * 3)
            for calls in made:
                calls._nccl.eager_connect_single_device.assert_called_once_with(calls.device)
            self.assertEqual(sorted(meeting.timeouts), [(0, 60_000), (1, 60_000), (2, 60_000)])
            self.assertEqual(sorted(rank for _, rank, _, _ in meeting.groups), [0, 1, 2])
            for _, _, size, seen in meeting.groups:
                self.assertEqual((size, seen), (3, handed._SETTINGS))
            # The ranks share what nobody had before.
            for own, rank, _, _ in meeting.groups:
                self.assertFalse(own.check([f"key {rank}"]))
                own.set(f"key {rank}", "1")
            keys = ["key 0", "key 1", "key 2"]
            found.append(all(own.check(keys) for own, _, _, _ in meeting.groups))
        self.assertEqual(found, [True, True])
        self.assertEqual(os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "1")
        self.assertNotIn("TORCH_NCCL_BLOCKING_WAIT", os.environ)

    def test_no_rank_does_where_one_cannot(self) -> None:
        meeting = Meeting(["", "PyTorch has no NCCL", ""], dist.HashStore())
        with self.assertLogs(handed._log, logging.INFO) as logs:
            made = meeting.connect()
        self.assertTrue(all(type(one) is DeviceCalls for one in made))
        self.assertEqual(meeting.groups, [])
        # Not NCCL: some ranks would find this library in its place.
        self.assertEqual(meeting.backends, ["engine"] * 3)
        (line,) = logs.records
        self.assertEqual(line.levelno, logging.WARNING)
        self.assertIn("of rank 1, PyTorch has no NCCL", line.getMessage())

    def test_where_no_rank_can_it_is_no_warning(self) -> None:
        meeting = Meeting(["PyTorch has no NCCL"] * 2, dist.HashStore())
        with self.assertLogs(handed._log, logging.INFO) as logs:
            meeting.connect()
        self.assertEqual(meeting.backends, ["auto"] * 2)
        self.assertEqual([line.levelno for line in logs.records], [logging.INFO])

    def test_what_is_in_the_place_of_nccl_is_not_taken_for_it(self) -> None:
        meeting = Meeting(["PyTorch is older than 2.11"] * 2, dist.HashStore())
        meeting.is_ours = True
        meeting.connect()
        self.assertEqual(meeting.backends, ["engine"] * 2)


class Library(unittest.TestCase):
    def test_it_is_loaded_before_pytorch_with_cuda(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "torch/lib").mkdir(parents=True)
            user = Path(folder, "torch/lib/libtorch_cuda.so")
            found = SimpleNamespace(submodule_search_locations=[f"{folder}/torch"])
            for is_imported, has_cuda, variables, is_loaded in (
                (False, True, {}, True),
                (False, True, {"SPARK_CCL_BACKEND": "engine"}, True),
                (True, True, {}, False),
                (False, False, {}, False),
                (False, True, {"SPARK_CCL_TORCH_NCCL": "0"}, False),
                (False, True, {"SPARK_CCL_BACKEND": "NCCL"}, False),
            ):
                user.touch() if has_cuda else user.unlink(missing_ok=True)
                modules = dict(sys.modules)
                if not is_imported:
                    del modules["torch"]
                with contextlib.ExitStack() as stack:
                    stack.enter_context(mock.patch.dict(os.environ, variables))
                    stack.enter_context(mock.patch.dict(sys.modules, modules, clear=True))
                    stack.enter_context(mock.patch("importlib.util.find_spec", return_value=found))
                    load = stack.enter_context(mock.patch("ctypes.CDLL"))
                    nccl_library.load()
                self.assertEqual(load.called, is_loaded, (is_imported, has_cuda, variables))

    def test_whose_it_is_the_library_says_that_pytorch_finds(self) -> None:
        ours = SimpleNamespace(ncclGetVersion=1, spark_nccl_version=1)
        theirs, other = SimpleNamespace(ncclGetVersion=1), SimpleNamespace()
        for in_all, of_pytorch, expected in (
            (other, ours, True),
            (other, theirs, False),
            (ours, theirs, True),
            (theirs, ours, False),
            (other, other, False),
            (other, None, False),
        ):

            def opened(path: object, mode: int, scopes: Any = (in_all, of_pytorch)) -> Any:
                found = scopes[path is not None]
                if found is None:
                    raise OSError("not loaded")
                return found

            nccl_library._serving.cache_clear()
            self.addCleanup(nccl_library._serving.cache_clear)
            with mock.patch("ctypes.CDLL", opened):
                self.assertEqual(nccl_library.is_ours(), expected)

    def test_why_a_communicator_has_failed_the_library_tells(self) -> None:
        for answer, expected in (
            ((0, 0), ""),
            ((0, 7), ""),
            ((0, 6), "rank 1 died"),
            ((4, 0), "rank 1 died"),
        ):

            def asked(at: Any, state: Any, answer: tuple[int, int] = answer) -> int:
                refused, state._obj.value = answer
                return refused

            library = mock.Mock(ncclCommGetAsyncError=asked)
            library.ncclGetLastError.return_value = b"rank 1 died"
            with mock.patch.object(nccl_library, "_serving", return_value=library):
                self.assertEqual(nccl_library.failure_of(7), expected)

    def test_it_is_in_the_package(self) -> None:
        self.assertTrue(nccl_library.OURS.exists())


if __name__ == "__main__":
    unittest.main()
