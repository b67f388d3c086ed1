"""Started calls, groups, failures, and the ends of communicators."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import unittest
from collections.abc import Callable

import jobs
import numpy
from values import assert_same, of_rank, reduced

import spark_ccl
from spark_ccl import Communicator, InvalidError, Op, RemoteError, TimedOutError

LARGE = 300_000


def started(comm: Communicator) -> None:
    arrays = [of_rank(comm.rank, LARGE, "float32") for _ in range(8)]
    works = [comm.all_reduce(each, name=f"bucket {place}", async_op=True) for place, each in enumerate(arrays)]
    for work in reversed(works):
        assert work is not None
        work.wait()
        work.wait()
        assert work.test()
    for each in arrays:
        assert_same(each, reduced(Op.SUM, comm.size, LARGE, "float32"), "started")


def dropped(comm: Communicator) -> None:
    """A buffer that the program has dropped is still received into, and must not be freed first."""
    kept = numpy.zeros(LARGE, numpy.float32)
    for _ in range(20):
        comm.all_reduce(of_rank(comm.rank, LARGE, "float32"), numpy.zeros(LARGE, numpy.float32), async_op=True)
        gc.collect()
    comm.all_reduce(of_rank(comm.rank, LARGE, "float32"), kept, async_op=True)
    comm.close()
    assert_same(kept, reduced(Op.SUM, comm.size, LARGE, "float32"), "dropped")


def grouped(comm: Communicator) -> None:
    """A group's calls use memory that the program has dropped."""
    received = [numpy.zeros(LARGE, numpy.float64) for _ in range(comm.size)]
    with spark_ccl.group():
        for peer in range(comm.size):
            comm.send(of_rank(comm.rank, LARGE, "float64"), peer)
            with spark_ccl.group():
                comm.recv(received[peer], peer)
        gc.collect()
    for peer in range(comm.size):
        assert_same(received[peer], of_rank(peer, LARGE, "float64"), f"from {peer}")


def different(comm: Communicator) -> str:
    try:
        comm.all_reduce(numpy.zeros(10 + comm.rank), name="gradients")
    except RemoteError as error:
        return str(error)
    raise AssertionError("ranks have passed different lengths")


def death(comm: Communicator) -> str:
    try:
        comm.barrier()
        if comm.rank == 1:
            # The others may still be in the barrier.
            os._exit(1)
        comm.all_reduce(numpy.zeros(LARGE))
    except RemoteError as error:
        text = str(error)
    else:
        raise AssertionError("a rank has died")
    with comm.recover() as once, once.shrink() as rest:
        total = numpy.array([1.0])
        rest.all_reduce(total)
        assert total[0] == rest.size == comm.size - 1
    return text


def late(comm: Communicator) -> str:
    comm.set_timeout(0.5)
    if comm.rank == 0:
        try:
            comm.barrier()
        except TimedOutError as error:
            return str(error)
    else:
        try:
            comm.recv(numpy.zeros(1), 0)
        except spark_ccl.Error:
            return "failed"
    raise AssertionError("a rank was late")


def late_for_started(comm: Communicator) -> str:
    """A started call keeps the timeout with which it began."""
    comm.set_timeout(0.5)
    if comm.rank == 0:
        work = comm.barrier(async_op=True)
        comm.set_timeout(600)
        assert work is not None
        try:
            work.wait()
        except TimedOutError as error:
            return str(error)
    else:
        comm.set_timeout(600)
        try:
            comm.recv(numpy.zeros(1), 0)
        except spark_ccl.Error:
            return "failed"
    raise AssertionError("a rank was late")


class Interrupted(BaseException):
    pass


def interrupted(comm: Communicator) -> str:
    """A signal's handler raises when a wait returns, and before its result is recorded."""
    if comm.rank == 1:
        comm.recv(bytearray(1), 0)
        comm.abort("enough")
        return ""

    def handle(number: int, frame: object) -> None:
        raise Interrupted

    def interrupt() -> None:
        # The main thread waits by then; earlier would be fine, too.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGUSR1)
        comm.send(bytearray(1), 1)

    signal.signal(signal.SIGUSR1, handle)
    work = comm.all_reduce(numpy.zeros(3), async_op=True)
    assert work is not None
    sender = threading.Thread(target=interrupt)
    sender.start()
    try:
        work.wait()
    except Interrupted:
        pass
    else:
        raise AssertionError("the handler did not raise")
    sender.join()
    try:
        work.wait()
    except spark_ccl.Error as error:
        return str(error)
    raise AssertionError("the call has failed")


def broken(comm: Communicator) -> str:
    try:
        with comm:
            if comm.rank == 0:
                raise KeyError("weights")
            comm.barrier()
    except KeyError:
        return "own"
    except RemoteError as error:
        return str(error)
    raise AssertionError("a rank has raised an error")


class Calls(unittest.TestCase):
    def test_started_calls(self) -> None:
        jobs.run(started, 3)

    def test_calls_without_their_work(self) -> None:
        jobs.run(dropped, 2)

    def test_groups(self) -> None:
        jobs.run(grouped, 3)

    def test_different_calls_are_named(self) -> None:
        for text in jobs.run(different, 2, fails=True):
            self.assertIn("gradients", text)

    def test_a_dead_rank_is_named_and_the_others_go_on(self) -> None:
        first, _, third = jobs.run(death, 3, fails=True, dies=(1,))
        for text in (first, third):
            self.assertIn("rank 1", text)

    def test_a_late_rank_is_named(self) -> None:
        for function in (late, late_for_started):
            text, _ = jobs.run(function, 2, fails=True)
        self.assertIn("rank 1", text)

    def test_an_interrupted_wait_hides_no_failure(self) -> None:
        self.assertIn("not known", jobs.run(interrupted, 2, fails=True)[0])

    def test_an_exception_reaches_the_other_ranks(self) -> None:
        own, other = jobs.run(broken, 2, fails=True)
        self.assertEqual(own, "own")
        self.assertIn("KeyError", other)
        self.assertIn("weights", other)

    def test_settings(self) -> None:
        with self.assertRaisesRegex(InvalidError, "TIMEOUTS"):
            Communicator(spark_ccl.UniqueId(), 0, 1, timeouts="3")

    def test_ids(self) -> None:
        text = str(spark_ccl.UniqueId())
        self.assertEqual(str(spark_ccl.UniqueId.parse(f" {text}\n")), text)
        with self.assertRaises(InvalidError):
            spark_ccl.UniqueId.parse("no id")

    def test_what_is_closed_says_so(self) -> None:
        comm = Communicator(spark_ccl.UniqueId(), 0, 1)
        comm.close()
        comm.close()
        with self.assertRaisesRegex(InvalidError, "closed"):
            comm.barrier()

    def test_numbers_that_are_no_int_of_c(self) -> None:
        with Communicator(spark_ccl.UniqueId(), 0, 1) as comm:
            memory = bytearray(4)
            calls: tuple[Callable[[int], object], ...] = (
                lambda number: Communicator(spark_ccl.UniqueId(), number, 1),
                lambda number: comm.split(number),
                lambda number: comm.split(0, number),
                lambda number: comm.shrink([number]),
                lambda number: comm.broadcast(memory, root=number),
                lambda number: comm.reduce(memory, memory, root=number),
                lambda number: comm.scatter(memory, memory, root=number),
                lambda number: comm.gather(memory, memory, root=number),
                lambda number: comm.send(memory, number),
                lambda number: comm.recv(memory, number),
                lambda number: comm.probe(number),
            )
            for place, call in enumerate(calls):
                # C would see another valid number, or 0, for each of these.
                for number in (1 << 31, 1 << 32, (1 << 32) + 1):
                    with self.subTest(call=place), self.assertRaisesRegex(InvalidError, "less than 2"):
                        call(number)

    def test_wrong_arguments(self) -> None:
        with Communicator(spark_ccl.UniqueId(), 0, 1) as comm:
            with self.assertRaisesRegex(InvalidError, "timeout"):
                comm.set_timeout(0)
            with self.assertRaisesRegex(InvalidError, "timeout"):
                comm.set_timeout(float("inf"))
            with self.assertRaisesRegex(InvalidError, "color"):
                comm.split(-1)
            with self.assertRaises(InvalidError):
                comm.send(b"a", 1)
            with self.assertRaises(InvalidError), spark_ccl.group():
                comm.split(0)


if __name__ == "__main__":
    unittest.main()
