"""What becomes of started calls: their futures, and their results."""

from __future__ import annotations

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
    """Also later waits raise, and a future."""
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


class Works(unittest.TestCase):
    def test_callbacks_that_wait_for_calls(self) -> None:
        for backend in ("spark_ccl", groups.MIXED):
            with self.subTest(backend=backend):
                groups.run(nested_futures, 2, backend=backend)

    def test_results_in_leaves_and_in_tensors_of_inference(self) -> None:
        groups.run(results_in_leaves, 2)

    def test_results_that_cannot_be_taken(self) -> None:
        groups.run(results_that_cannot_be_taken, 2)


if __name__ == "__main__":
    unittest.main()
