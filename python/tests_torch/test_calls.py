"""Compares every call of torch.distributed with results that are computed here."""

from __future__ import annotations

import unittest

import groups
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import ReduceOp

COUNTS = (0, 1, 7, 1000, 70_001)
REDUCED = (
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
MOVED = (*REDUCED, torch.bool, torch.int16, torch.complex64, torch.float8_e4m3fn)
OPS = {
    ReduceOp.SUM: lambda ranks: ranks.sum(0),
    ReduceOp.PRODUCT: lambda ranks: ranks.prod(0),
    ReduceOp.MAX: lambda ranks: ranks.amax(0),
    ReduceOp.MIN: lambda ranks: ranks.amin(0),
}


def of_rank(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, exact as floats, which differ between ranks at each place."""
    places = torch.arange(count)
    numbers = (places * 7 + places // 256 + rank * 3) % 5 + rank % 2
    return (numbers % 2 == 0) if dtype == torch.bool else numbers.to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    # By bytes, since some types cannot be compared.
    assert actual.contiguous().view(-1).view(torch.uint8).equal(expected.contiguous().view(-1).view(torch.uint8)), what


def everyone(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [of_rank(rank, count, dtype) for rank in range(dist.get_world_size())]


def reductions() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in REDUCED:
        for count in COUNTS:
            for op, compute in OPS.items():
                what = f"{dtype} {op} x {count}"
                expected = compute(torch.stack(everyone(count, dtype)).to(torch.float64)).to(dtype)
                for started in (False, True):
                    tensor = of_rank(rank, count, dtype)
                    work = dist.all_reduce(tensor, op, async_op=started)
                    if work is not None:
                        work.wait()
                        assert work.is_completed()
                    same(tensor, expected, what)
                root = count % size
                tensor = of_rank(rank, count, dtype)
                dist.reduce(tensor, root, op)
                same(tensor, expected if rank == root else of_rank(rank, count, dtype), what)
            whole = torch.stack(everyone(count * size, dtype)).to(torch.float64).sum(0).to(dtype)
            block = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_tensor(block, of_rank(rank, count * size, dtype))
            same(block, whole[rank * count :][:count], f"{dtype} x {count}")
            block = torch.empty(count, dtype=dtype)
            dist.reduce_scatter(
                block, list(of_rank(rank, count * size, dtype).split(count)) if count else [block] * size
            )
            same(block, whole[rank * count :][:count], f"{dtype} x {count}")


def reductions_of_other_types() -> None:
    """Types that PyTorch itself cannot add: the expected numbers are computed as integers."""
    rank = dist.get_rank()
    for dtype in (torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2):
        for count in COUNTS:
            numbers = torch.stack(everyone(count, torch.int64))
            for op, compute in OPS.items():
                tensor = of_rank(rank, count, torch.int64).to(dtype)
                dist.all_reduce(tensor, op)
                same(tensor, compute(numbers).to(dtype), f"{dtype} {op} x {count}")


def special_reductions() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mean = torch.full((9,), float(rank))
    dist.all_reduce(mean, ReduceOp.AVG)
    torch.testing.assert_close(mean, torch.full((9,), (size - 1) / 2))

    scaled = torch.full((9,), float(rank + 1), dtype=torch.bfloat16)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(2.0))
    same(scaled, torch.full((9,), float(size * (size + 1)), dtype=torch.bfloat16), "scaled")

    complex_sum = torch.full((9,), complex(rank, -1))
    dist.all_reduce(complex_sum)
    same(complex_sum, torch.full((9,), complex(size * (size - 1) // 2, -size)), "complex")

    for op, expected in ((ReduceOp.SUM, True), (ReduceOp.BOR, True), (ReduceOp.BAND, False), (ReduceOp.MIN, False)):
        truth = torch.tensor([rank == 0, True, False])
        dist.all_reduce(truth, op)
        same(truth, torch.tensor([expected, True, False]), str(op))

    # The order of elements is that in the tensor, not that in memory.
    columns = torch.zeros(4, 6).t()
    columns.copy_(of_rank(rank, 24, torch.float32).view(6, 4))
    with_gaps = torch.zeros(6, 8)[:, ::2]
    with_gaps.copy_(columns)
    dist.all_reduce(columns)
    dist.all_reduce(with_gaps)
    total = torch.stack(everyone(24, torch.float32)).sum(0).view(6, 4)
    same(columns, total, "columns")
    same(with_gaps, total, "with gaps")


def moves() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in MOVED:
        for count in COUNTS:
            what = f"{dtype} x {count}"
            own, all_own, root = of_rank(rank, count, dtype), everyone(count, dtype), count % size

            tensor = own.clone()
            dist.broadcast(tensor, root)
            same(tensor, all_own[root], what)

            apart = [torch.empty(count, dtype=dtype) for _ in range(size)]
            dist.all_gather(apart, own)
            whole = torch.empty(count * size, dtype=dtype)
            dist.all_gather(list(whole.split(count)) if count else [whole] * size, own)
            into = torch.empty(count * size, dtype=dtype)
            dist.all_gather_into_tensor(into, own)
            for place in range(size):
                same(apart[place], all_own[place], what)
                same(whole[place * count :][:count], all_own[place], what)
                same(into[place * count :][:count], all_own[place], what)

            gathered = [torch.empty(count, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(own, gathered, dst=root)
            for actual, expected in zip(gathered or [], all_own):
                same(actual, expected, what)

            tensor = torch.empty(count, dtype=dtype)
            dist.scatter(tensor, all_own if rank == root else None, src=root)
            same(tensor, own, what)


def exchanges() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in MOVED:
        for count in COUNTS:
            what = f"{dtype} x {count}"
            own = of_rank(rank, count * size, dtype)
            expected = torch.cat([one[rank * count :][:count] for one in everyone(count * size, dtype)])
            received = torch.empty_like(own)
            dist.all_to_all_single(received, own)
            same(received, expected, what)
            if count:
                lists = [torch.empty(count, dtype=dtype) for _ in range(size)]
                dist.all_to_all(lists, list(own.split(count)))
                same(torch.cat(lists), expected, what)

            # Rank a sends count + a + 2 b rows of 3 to rank b.
            to = [count + rank + 2 * peer for peer in range(size)]
            come = [count + peer + 2 * rank for peer in range(size)]
            rows = torch.empty(sum(come), 3, dtype=dtype)
            dist.all_to_all_single(rows, of_rank(rank, 3 * sum(to), dtype).view(-1, 3), come, to)
            blocks = []
            for peer in range(size):
                begin = sum(count + peer + 2 * other for other in range(rank))
                block = of_rank(peer, 3 * (begin + come[peer]), dtype)[3 * begin :]
                blocks.append(block.view(-1, 3))
            same(rows, torch.cat(blocks), what)

            around = torch.empty(count * size, dtype=dtype)
            sent = dist.P2POp(dist.isend, own, (rank + 1) % size)
            got = dist.P2POp(dist.irecv, around, (rank - 1) % size)
            for work in dist.batch_isend_irecv([sent, got]):
                work.wait()
            same(around, of_rank((rank - 1) % size, count * size, dtype), what)
    dist.barrier()


def shared_memory() -> None:
    """The sent tensor may lie anywhere in the received one, as with gloo."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 1000
    blocks = everyone(count, torch.float32)
    for place in range(size):
        memory = torch.zeros(size, count)
        memory[place] = blocks[rank]
        dist.all_gather_into_tensor(memory, memory[place])
        same(memory, torch.stack(blocks), "all_gather_into_tensor")

        memory[place] = blocks[rank]
        dist.all_gather(list(memory), memory[place])
        same(memory, torch.stack(blocks), "all_gather")

        memory[place] = blocks[rank]
        dist.gather(memory[place], list(memory) if rank == 1 else None, dst=1)
        if rank == 1:
            same(memory, torch.stack(blocks), "gather")

        memory = torch.stack([block + rank for block in blocks])
        dist.reduce_scatter_tensor(memory[place], memory)
        same(memory[place], blocks[rank] * size + sum(range(size)), "reduce_scatter_tensor")

    memory = torch.stack([block + rank for block in blocks])
    dist.all_to_all_single(memory, memory)
    same(memory, torch.stack([blocks[rank] + peer for peer in range(size)]), "all_to_all_single")
    # Two blocks of one memory, which share a part of it.
    memory = of_rank(rank, size * count + 1, torch.float32)
    dist.all_to_all_single(memory[1:], memory[:-1])
    sent = [one[rank * count :][:count] for one in everyone(size * count + 1, torch.float32)]
    same(memory[1:], torch.cat(sent), "all_to_all_single")


def coalesced() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [of_rank(rank, count, torch.float32) for count in COUNTS]
    dist.all_reduce_coalesced(tensors)
    for tensor in tensors:
        same(tensor, torch.stack(everyone(tensor.numel(), torch.float32)).sum(0), "all_reduce_coalesced")
    owns = [of_rank(rank, count, torch.float32) for count in COUNTS]
    # One tensor twice, and parts of it: each gets the sum of its own values.
    tensor = of_rank(rank, 1000, torch.float32)
    total = torch.stack(everyone(1000, torch.float32)).sum(0)
    for started in (False, True):
        shared = tensor.clone()
        work = dist.all_reduce_coalesced([shared, shared, shared[10:20], shared[::2]], async_op=started)
        if work is not None:
            work.wait()
        same(shared, total, "overlapping tensors")
    lists = [[torch.empty(count) for count in COUNTS] for _ in range(size)]
    dist.all_gather_coalesced(lists, owns)
    for peer in range(size):
        for tensor in lists[peer]:
            same(tensor, of_rank(peer, tensor.numel(), torch.float32), "all_gather_coalesced")


def coalesced_by_the_manager() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    sums = [of_rank(rank, count, torch.float32) for count in COUNTS]
    gathered = [torch.empty(size * count) for count in COUNTS]
    scattered = [torch.empty(count) for count in COUNTS]
    calls = (
        lambda place: dist.all_reduce(sums[place]),
        lambda place: dist.all_gather_into_tensor(gathered[place], of_rank(rank, COUNTS[place], torch.float32)),
        lambda place: dist.reduce_scatter_tensor(scattered[place], of_rank(rank, size * COUNTS[place], torch.float32)),
    )
    for call in calls:
        with dist._coalescing_manager(async_ops=True) as manager:
            for place in range(len(COUNTS)):
                call(place)
        manager.wait()
    for place, count in enumerate(COUNTS):
        same(sums[place], torch.stack(everyone(count, torch.float32)).sum(0), "sums")
        same(gathered[place], torch.cat(everyone(count, torch.float32)), "gathered")
        total = torch.stack(everyone(size * count, torch.float32)).sum(0)
        same(scattered[place], total[rank * count :][:count], "scattered")


def objects() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": peer} for peer in range(size)]
    shared = [{"rank": rank}]
    dist.broadcast_object_list(shared, src=1)
    assert shared == [{"rank": 1}]
    own: list[object] = [None]
    dist.scatter_object_list(own, list(range(size)) if rank == 0 else None, src=0)
    assert own == [rank]


def parts() -> None:
    """Two groups, and the whole, at once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    every = dist.new_group(list(range(size)))
    pair = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    tensors = [torch.full((1000,), float(rank)) for _ in range(2)]
    works = [dist.all_reduce(tensors[0], async_op=True), dist.all_reduce(tensors[1], group=every, async_op=True)]
    for work in reversed(works):
        work.wait()
    for tensor in tensors:
        assert tensor[0] == size * (size - 1) / 2
    for number, group in enumerate(pair):
        if rank in (number, number + 1):
            tensor = torch.full((3,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [2.0 * number + 1] * 3
            dist.destroy_process_group(group)


def futures() -> None:
    size = dist.get_world_size()
    tensors = [torch.ones(100_000) for _ in range(10)]
    started = [dist.all_reduce(tensor, async_op=True).get_future() for tensor in tensors]
    for future in torch.futures.collect_all(started).wait():
        assert future.value()[0][0] == size
    halved = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done: done.value()[0] / size)
    assert halved.wait().tolist() == [1.0] * 3


def futures_of_messages() -> None:
    """A message that has not arrived delays nothing else."""
    rank, size = dist.get_rank(), dist.get_world_size()
    came = torch.zeros(3)
    message = dist.irecv(came, 1).get_future() if rank == 0 else None
    for _ in range(3):
        assert dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()[0][0] == size
    if rank == 1:
        dist.send(torch.ones(3), 0)
    if message is not None:
        assert message.wait()[0].tolist() == [1.0] * 3


def refused() -> None:
    def expect(text: str, function: object, *arguments: object, **options: object) -> None:
        try:
            function(*arguments, **options)
        except RuntimeError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"{text}: nothing was raised")

    expect("cannot be reduced", dist.all_reduce, torch.ones(2, dtype=torch.int16))
    expect("the tag is -3", dist.send, torch.ones(2), 1 - dist.get_rank() % 2, tag=-3)
    expect("elements of torch.float32; expected", dist.all_gather_into_tensor, torch.ones(7), torch.ones(3))
    expect("the split sizes of input", dist.all_to_all_single, torch.ones(4), torch.ones(4), None, [1] * 9)

    size, rank = dist.get_world_size(), dist.get_rank()
    away, here = torch.ones(2, device="meta"), [torch.ones(2) for _ in range(size)]
    group = dist.group.WORLD
    options = dist.ScatterOptions()
    options.rootRank = rank
    expect("is on meta", group.alltoall, [away] * size, here, dist.AllToAllOptions())
    expect("is on meta", group.alltoall, here, [away] * size, dist.AllToAllOptions())
    expect("is on meta", group.gather, [[away] * size], [here[0]], options)
    expect("is on meta", group.scatter, [here[0]], [[away] * size], options)
    expect("is on meta", group.allgather, [[away] * size], [here[0]], AllgatherOptions())
    types = "the list[0] has elements of torch.int32; expected elements of torch.float32"
    expect(types, group.allgather, [[torch.ones(2).int()] * size], [here[0]], AllgatherOptions())
    expect("torch.float32 and torch.int32", group.alltoall, [torch.ones(2).int()] * size, here, dist.AllToAllOptions())

    # gloo would add up even those of one rank.
    expect("there are 2 tensors", group.allreduce, [torch.ones(2)] * 2, dist.AllreduceOptions())
    expect("there are 0 tensors", group.allreduce, [], dist.AllreduceOptions())
    expect("the list of tensors is empty", group.allreduce_coalesced, [], dist.AllreduceCoalescedOptions())

    entries = "have 2 and 1 entries"
    whole = torch.ones(2 * size)
    expect(entries, group.all_gather_single_coalesced, [whole, whole], here[:1], AllgatherOptions())
    expect(entries, group.reduce_scatter_single_coalesced, here[:2], [whole], dist.ReduceScatterOptions())
    expect(entries, group.allgather_coalesced, [here] * size, here[:1], AllgatherOptions())
    expect("have 1 and 2 entries", group.allgather, [here], here, AllgatherOptions())

    numbers = torch.ones(2, dtype=torch.complex64)
    expect("resolve_conj()", dist.all_reduce, numbers.conj())
    expect("resolve_neg()", dist.broadcast, numbers[:1].conj().imag, 0)
    # Nothing was sent, and all works on.
    dist.barrier()


def again_and_again() -> None:
    for _ in range(20):
        group = dist.new_group(list(range(dist.get_world_size())))
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)


class Calls(unittest.TestCase):
    def test_reductions(self) -> None:
        for size in (2, 3, 4):
            with self.subTest(ranks=size):
                groups.run(reductions, size)

    def test_reductions_of_other_types(self) -> None:
        groups.run(reductions_of_other_types, 2)

    def test_special_reductions(self) -> None:
        groups.run(special_reductions, 3)

    def test_moves(self) -> None:
        for size in (2, 3, 4):
            with self.subTest(ranks=size):
                groups.run(moves, size)

    def test_exchanges(self) -> None:
        for size in (2, 3, 4):
            with self.subTest(ranks=size):
                groups.run(exchanges, size)

    def test_memory_that_is_sent_and_received(self) -> None:
        for size in (2, 3):
            with self.subTest(ranks=size):
                groups.run(shared_memory, size)

    def test_coalesced_calls(self) -> None:
        groups.run(coalesced, 2)
        groups.run(coalesced_by_the_manager, 3)

    def test_objects(self) -> None:
        groups.run(objects, 3)

    def test_groups(self) -> None:
        groups.run(parts, 3)

    def test_futures(self) -> None:
        groups.run(futures, 2)
        groups.run(futures_of_messages, 2)

    @groups.beside_others
    def test_calls_beside_another_backend(self) -> None:
        for function in (special_reductions, moves, exchanges, coalesced, objects, futures, futures_of_messages):
            with self.subTest(function=function.__name__):
                groups.run(function, 2, backend=groups.MIXED)

    def test_what_is_refused(self) -> None:
        groups.run(refused, 2)

    def test_groups_come_and_go(self) -> None:
        groups.run(again_and_again, 2)


if __name__ == "__main__":
    unittest.main()
