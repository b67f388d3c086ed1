"""Tensors on GPUs: two ranks, each with its own GPU, or with one for both where there is only one.

A GPU for both needs this library's own kernels, and is slow: it tests values and order only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import unittest
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import groups
import torch
import torch.distributed as dist
from test_training import losses_of, model, same_everywhere
from torch.nn.parallel import DistributedDataParallel

from spark_ccl.torch import nccl_library
from spark_ccl.torch.handed import HandedCalls

SIZE = 2
COUNT = 1027
GPUS = torch.cuda.device_count()
# NCCL takes a GPU for each rank. Without SPARK_CCL_TORCH_NCCL=0, both are this library's kernels.
BACKENDS = ("auto", "engine") if GPUS >= SIZE else ("engine",)


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def values(rank: int, dtype: torch.dtype = torch.float32, count: int = COUNT) -> torch.Tensor:
    """The values of a rank: different from other ranks' and from place to place, and exact in all
    types."""
    return ((torch.arange(count, device=device()) * 3 + rank * 5) % 61).to(dtype)


def every_rank() -> range:
    return range(dist.get_world_size())


def expect(seen: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert seen.device == device(), what
    assert torch.equal(seen, expected), f"{what}: {seen} is not {expected}"


def done(work: Any) -> None:
    """Waits for the result of an asynchronous call; others return nothing."""
    if work is not None:
        assert work.wait()


def reductions() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        own = [values(one, dtype) for one in every_rank()]
        stack = torch.stack(own)
        for op, total in (
            (dist.ReduceOp.SUM, stack.sum(0).to(dtype)),
            (dist.ReduceOp.MAX, stack.amax(0)),
            (dist.ReduceOp.MIN, stack.amin(0)),
        ):
            for async_op in (False, True):
                tensor = own[rank].clone()
                done(dist.all_reduce(tensor, op, async_op=async_op))
                expect(tensor, total, f"all_reduce {dtype} {op}")
    mean = values(rank)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    expect(mean, sum(values(one) for one in every_rank()) / size, "mean")
    bits = values(rank, torch.int32)
    dist.all_reduce(bits, dist.ReduceOp.BXOR)
    expect(bits, values(0, torch.int32) ^ values(1, torch.int32), "bits")
    root = size - 1
    tensor = values(rank)
    dist.reduce(tensor, root)
    expect(tensor, sum(values(one) for one in every_rank()) if rank == root else values(rank), "reduce")
    blocks = [values(rank) + one for one in every_rank()]
    total = sum(values(one) + rank for one in every_rank())
    block = torch.empty_like(blocks[0])
    dist.reduce_scatter(block, blocks)
    expect(block, total, "reduce_scatter")
    block.zero_()
    done(dist.reduce_scatter_tensor(block, torch.cat(blocks), async_op=True))
    expect(block, total, "reduce_scatter_tensor")


def copies() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for async_op in (False, True):
        tensor = values(rank)
        done(dist.broadcast(tensor, 1, async_op=async_op))
        expect(tensor, values(1), "broadcast")
        turned = values(rank, count=COUNT // 13 * 13).view(13, -1).t()
        done(dist.broadcast(turned, 0, async_op=async_op))
        expect(turned, values(0, count=COUNT // 13 * 13).view(13, -1).t(), "broadcast of what is not contiguous")
        every = [torch.empty(COUNT, device=device()) for _ in every_rank()]
        done(dist.all_gather(every, values(rank), async_op=async_op))
        for one in every_rank():
            expect(every[one], values(one), "all_gather")
        uneven = [torch.empty(COUNT + one, device=device()) for one in every_rank()]
        done(dist.all_gather(uneven, values(rank, count=COUNT + rank), async_op=async_op))
        for one in every_rank():
            expect(uneven[one], values(one, count=COUNT + one), "all_gather of uneven tensors")
        whole = torch.empty(size * COUNT, device=device())
        done(dist.all_gather_into_tensor(whole, values(rank), async_op=async_op))
        expect(whole, torch.cat([values(one) for one in every_rank()]), "all_gather_into_tensor")
        done(dist.gather(values(rank), every if rank == 0 else None, 0, async_op=async_op))
        if rank == 0:
            for one in every_rank():
                expect(every[one], values(one), "gather")
        block = torch.empty(COUNT, device=device())
        parts = [values(rank) + one for one in every_rank()] if rank == 1 else None
        done(dist.scatter(block, parts, 1, async_op=async_op))
        expect(block, values(1) + rank, "scatter")
        given = torch.cat([values(rank) + 10 * one for one in every_rank()])
        taken = torch.empty_like(given)
        done(dist.all_to_all_single(taken, given, async_op=async_op))
        expect(taken, torch.cat([values(one) + 10 * rank for one in every_rank()]), "all_to_all_single")
    dist.barrier()
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": one} for one in every_rank()]
    on_cpu = torch.tensor([float(rank)])
    dist.all_reduce(on_cpu)
    assert on_cpu.item() == sum(every_rank())


def order() -> None:
    """Calls run after the work in the current stream, and `wait` makes that stream wait, not the
    program."""
    rank = dist.get_rank()
    total = sum(values(one) for one in every_rank())
    tensor = torch.zeros(COUNT, device=device())
    torch.cuda._sleep(2_000_000_000)
    tensor += values(rank)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait()
    after = tensor * 2
    waited_for = torch.cuda.Event()
    waited_for.record()
    assert not waited_for.query(), "the program has waited"
    expect(after, total * 2, "what follows a call")
    assert work.is_completed()
    # Works of PyTorch's group do not say.
    assert not nccl_library.why_not_used() or (work.is_success() and work.exception() is None)
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        tensor = values(rank)
        torch.cuda._sleep(10_000_000)
        dist.all_reduce(tensor)
        after = tensor + 1
    torch.cuda.current_stream().wait_stream(other)
    expect(after, total + 1, "a call in another stream")
    tensor = values(rank)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    expect(future.wait()[0], total, "a future")
    tensor = values(rank)
    assert dist.all_reduce(tensor, async_op=True).wait(timedelta(seconds=30))
    expect(tensor, total, "a wait with a time")


def memory() -> None:
    """Tensors that the program has dropped stay until their calls have run."""
    rank = dist.get_rank()
    total = sum(values(one) for one in every_rank())
    kept = []
    for _ in range(20):
        whole = torch.empty(dist.get_world_size() * COUNT, device=device())
        own = values(rank)
        work = dist.all_gather_into_tensor(whole, own, async_op=True)
        del own
        garbage = torch.full((COUNT,), 1e9, device=device())
        del garbage
        kept.append((work, whole))
        blocks = dist.all_reduce(values(rank), async_op=True)
        del blocks
    for work, whole in kept:
        work.wait()
        expect(whole.view(dist.get_world_size(), -1).sum(0), total, "what was dropped")


def batches() -> None:
    rank = dist.get_rank()
    with dist._coalescing_manager(device=device(), async_ops=True) as batch:
        tensors = [values(rank) + one for one in range(3)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    batch.wait()
    for one, tensor in enumerate(tensors):
        expect(tensor, sum(values(other) + one for other in every_rank()), "a batch")


def errors() -> None:
    group = dist.group.WORLD
    assert group is not None
    here, away = torch.ones(4, device=device()), torch.ones(4)
    for problem in ("is on cpu", "tag is 3"):
        try:
            if problem == "tag is 3":
                dist.send(here, 1 - dist.get_rank(), tag=3)
            else:
                dist.all_gather_into_tensor(torch.empty(8, device=device()), away)
                dist.all_gather([torch.empty(4, device=device()) for _ in every_rank()], away)
        except Exception as error:
            assert problem in str(error), error
        else:
            raise AssertionError(problem)
    dist.all_reduce(here)
    assert here.tolist() == [2.0] * 4


def subgroups() -> None:
    rank = dist.get_rank()
    alone = [dist.new_group([one]) for one in every_rank()]
    tensor = values(rank)
    dist.all_reduce(tensor, group=alone[rank])
    expect(tensor, values(rank), "a group of one rank")
    both = dist.new_group(list(every_rank()))
    dist.all_reduce(tensor, group=both)
    expect(tensor, sum(values(one) for one in every_rank()), "another group")


def handed_on() -> None:
    """PyTorch's process group makes the calls, where its NCCL is this package's library."""
    group: Any = dist.group.WORLD
    assert isinstance(group._gpu.calls, HandedCalls) == (not nccl_library.why_not_used())


def graphs() -> None:
    """A call that is captured runs at each launch."""
    rank = dist.get_rank()
    tensor, beside = values(rank), values(rank)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        # Nothing but the group connects these two.
        work = dist.all_reduce(beside, async_op=True)
        dist.all_reduce(tensor)
        work.wait()
    tensor.copy_(values(rank))
    graph.replay()
    torch.cuda.synchronize()
    total = sum(values(one) for one in every_rank())
    expect(tensor, total * dist.get_world_size() ** 2, "a graph")
    expect(beside, total, "a call of a graph beside others")
    dist.barrier()
    del graph


def messages() -> None:
    rank = dist.get_rank()
    other = 1 - rank
    received = torch.empty(1 << 22, device=device())
    given = torch.full_like(received, rank + 1)
    operations = [dist.P2POp(dist.isend, given, other), dist.P2POp(dist.irecv, received, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    expect(received, torch.full_like(received, other + 1), "a batch of messages")
    if rank == 0:
        dist.send(values(7), other)
        dist.recv(received[:COUNT], other)
        expect(received[:COUNT], values(9), "a message back")
    else:
        work = dist.irecv(received[:COUNT], other)
        assert work is not None
        work.wait()
        expect(received[:COUNT], values(7), "a message")
        dist.send(values(9), other)
    # Rank r sends (r + 1) * (p + 1) elements to rank p.
    sent = [(rank + 1) * (one + 1) for one in every_rank()]
    received_counts = [(one + 1) * (rank + 1) for one in every_rank()]
    taken = torch.empty(sum(received_counts), device=device())
    dist.all_to_all_single(taken, values(rank, count=sum(sent)), received_counts, sent)
    begins = [sum((one + 1) * (before + 1) for before in range(rank)) for one in every_rank()]
    parts = [values(one)[begins[one] :][: received_counts[one]] for one in every_rank()]
    expect(taken, torch.cat(parts), "all_to_all_single of uneven parts")


def all_calls() -> None:
    for check in (reductions, copies, handed_on, order, memory, batches, errors, subgroups, graphs):
        check()
        torch.cuda.synchronize()


def training() -> list[float]:
    layers = DistributedDataParallel(model().to(device()), device_ids=[device().index], bucket_cap_mb=0.01)
    found = losses_of(layers, device())
    same_everywhere(layers.module)
    return found


def on_cpu() -> list[float]:
    layers = DistributedDataParallel(model(), bucket_cap_mb=0.01)
    return losses_of(layers, torch.device("cpu"))


def the_refusal(tensor: torch.Tensor) -> str:
    """What calls raise that the other rank does not make."""
    try:
        for _ in range(10_000):
            dist.all_reduce(tensor)
            # It ends, although the other rank's part does not come.
            torch.cuda.synchronize()
    except Exception as error:
        return str(error)
    return "no error"


def a_death() -> str:
    """A later call tells the remaining rank which one has died."""
    tensor = values(dist.get_rank())
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return the_refusal(tensor)


def a_late_rank() -> str:
    """Within the group's timeout, a rank is told which other one its call waits for."""
    tensor = values(dist.get_rank())
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    group: Any = dist.group.WORLD
    group.set_timeout(timedelta(seconds=3))
    if dist.get_rank() == 1:
        time.sleep(10)
        return ""
    return the_refusal(tensor)


def an_abort() -> str:
    tensor = values(dist.get_rank())
    try:
        # The abort may come while the other rank is still in this call, although all has been
        # summed.
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            group: Any = dist.group.WORLD
            group.abort()
        for _ in range(10_000):
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
    except Exception as error:
        return str(error)
    return "no error"


@contextlib.contextmanager
def by(backend: str) -> Iterator[None]:
    chosen = {"SPARK_CCL_BACKEND": backend}
    if GPUS < SIZE:
        chosen["SPARK_CCL_SHARE_GPU"] = "1"
    with mock.patch.dict(os.environ, chosen):
        yield


@unittest.skipUnless(torch.cuda.is_available(), "no GPU")
class OnGpus(unittest.TestCase):
    def each(self, function: Callable[[], Any], **options: Any) -> Iterator[list[Any]]:
        for backend in BACKENDS:
            with self.subTest(backend), by(backend):
                yield groups.run(function, SIZE, on_gpus=True, **options)

    def test_all_calls_give_every_element_its_value_in_order(self) -> None:
        for _ in self.each(all_calls):
            pass

    def test_messages(self) -> None:
        for _ in self.each(messages):
            pass

    def test_training_goes_as_on_the_cpu(self) -> None:
        expected = groups.run(on_cpu, SIZE)
        for found in self.each(training):
            for own, other in zip(found, expected):
                torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)

    def test_the_dead_rank_is_named(self) -> None:
        for found in self.each(a_death, dies=(1,), destroys=False):
            self.assertIn("rank 1", found[0])

    def test_a_late_rank_is_named(self) -> None:
        for found in self.each(a_late_rank, destroys=False):
            self.assertIn("rank 1", found[0])

    def test_an_abort_ends_the_calls_of_all(self) -> None:
        for found in self.each(an_abort, destroys=False):
            for said in found:
                self.assertIn("aborted", said)


if __name__ == "__main__":
    unittest.main()
