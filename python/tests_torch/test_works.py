"""Started calls: their futures, their results, and the end of their group before them."""

from __future__ import annotations

import threading
import unittest

import groups
import torch
import torch.distributed as dist


def nested_futures() -> None:
    """A callback makes calls of its own and waits for them, and so does a callback of those."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def started(value: float) -> torch.futures.Future[list[torch.Tensor]]:
        return dist.all_reduce(torch.full((3,), value), async_op=True).get_future()

    def outer(done: torch.futures.Future[list[torch.Tensor]]) -> list[float]:
        middle = started(done.value()[0][0].item() + rank).then(inner)
        return middle.wait()

    def inner(done: torch.futures.Future[list[torch.Tensor]]) -> list[float]:
        return started(done.value()[0][0].item()).wait()[0].tolist()

    total = sum(range(size))
    assert started(float(rank)).then(outer).wait() == [float(size * (size * total + total))] * 3


def earlier_futures() -> None:
    """A callback waits for a future that was requested before it began, and the callback of that
    one does so, too."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        # The others are late, so callbacks are not called at once.
        first, second, third = (dist.all_reduce(torch.ones(3), async_op=True).get_future() for _ in range(3))
        both = second.then(lambda done: third.wait()[0][0].item() + done.value()[0][0].item())
        every = first.then(lambda done: both.wait() + done.value()[0][0].item())
        store.set("all are asked for", "1")
        assert every.wait() == 3 * size
    else:
        store.wait(["all are asked for"])
        for _ in range(3):
            dist.all_reduce(torch.ones(3))


def leaf(count: int) -> torch.nn.Parameter:
    """A parameter whose elements are not in order."""
    return torch.nn.Parameter(torch.zeros(3, count).t())


def results_in_leaves() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    columns = torch.arange(12.0).view(4, 3)
    shared = leaf(4)
    if rank == 0:
        shared.data.copy_(columns)
    dist.broadcast(shared, 0)
    assert shared.equal(columns) and shared.is_leaf

    apart = [torch.nn.Parameter(torch.zeros(4, 3)) for _ in range(size)]
    dist.all_gather(apart, columns + rank)
    for peer in range(size):
        assert apart[peer].equal(columns + peer)

    for finished_by in (lambda work: work.wait(), lambda work: work.get_future().wait()):
        with torch.inference_mode():
            total = torch.zeros(3, 4).t()
            total.copy_(columns + rank)
            work = dist.all_reduce(total, async_op=True)
        finished_by(work)
        assert total.equal(columns * size + sum(range(size)))


def results_that_cannot_be_taken() -> None:
    """Later waits and a future raise, too."""
    twice = torch.zeros(1).expand(3)
    work = dist.all_reduce(twice, async_op=True)
    future = work.get_future()
    for wait in (work.wait, work.wait, future.wait, work.synchronize):
        try:
            wait()
        except RuntimeError as error:
            assert "single memory location" in str(error), error
        else:
            raise AssertionError("elements that share their memory have got their results")
    assert work.is_completed() and not work.is_success()
    assert "single memory location" in str(work.exception())


def destroyed_before_its_calls(dropped: bool) -> str:
    """Rank 1 waits for a call that rank 0 does not make before it destroys the group."""
    group = dist.new_group([0, 1])
    text = ""
    if dist.get_rank() == 0:
        work = dist.irecv(torch.zeros(3), 1, group=group)
        if dropped:
            del work
        dist.destroy_process_group(group)
        if not dropped:
            assert work.is_completed() and not work.is_success()
    else:
        try:
            dist.barrier(group=group)
        except RuntimeError as error:
            text = str(error)
    dist.barrier()
    return text


def dropped() -> str:
    return destroyed_before_its_calls(True)


def held() -> str:
    return destroyed_before_its_calls(False)


def destroyed_while_it_ends() -> None:
    """Calls that all ranks make are no reason to abort, even if nothing has waited for them."""
    group = dist.new_group([0, 1])
    tensor = torch.ones(100_000)
    for _ in range(10):
        work = dist.all_reduce(tensor, group=group, async_op=True)
    dist.destroy_process_group(group)
    work.wait()
    assert tensor.eq(2.0**10).all()


def failed_and_dropped() -> None:
    """Nothing is left of a group with failed calls."""
    import gc
    import weakref

    group = dist.new_group([0, 1])
    handle = weakref.ref(group._communicator._handle)
    dist.irecv(torch.zeros(3), 1 - dist.get_rank(), group=group)
    dist.barrier()
    group.abort()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert handle() is None
    dist.barrier()


def ended_by_a_callback() -> None:
    group = dist.new_group([0, 1])
    failures = []
    over = threading.Event()

    def end(_: object) -> None:
        try:
            group.shutdown()
        except Exception as failure:
            failures.append(failure)
        over.set()

    dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future().then(end)
    assert over.wait(groups.LIMIT)
    assert not failures, failures
    # There is nothing to abort any more; this waits for the thread of the callback.
    group.abort()
    group.shutdown()


class Works(unittest.TestCase):
    def test_callbacks_that_wait_for_calls(self) -> None:
        for backend in groups.BACKENDS:
            with self.subTest(backend=backend):
                groups.run(nested_futures, 2, backend=backend)
                groups.run(earlier_futures, 2, backend=backend)

    def test_results_in_leaves_and_in_tensors_of_inference(self) -> None:
        groups.run(results_in_leaves, 2)

    def test_results_that_cannot_be_taken(self) -> None:
        groups.run(results_that_cannot_be_taken, 2)

    @groups.since(2, 7)
    def test_the_end_of_a_group_before_its_calls(self) -> None:
        for function in (dropped, held):
            with self.subTest(function=function.__name__):
                text = groups.run(function, 2)[1]
                self.assertIn("rank 0", text)
                self.assertIn("destroyed before its calls were done", text)
        groups.run(destroyed_while_it_ends, 2)

    @groups.since(2, 7)
    def test_nothing_is_left_of_failed_calls(self) -> None:
        groups.run(failed_and_dropped, 2)

    def test_the_end_of_a_group_by_a_callback(self) -> None:
        groups.run(ended_by_a_callback, 2)


if __name__ == "__main__":
    unittest.main()
