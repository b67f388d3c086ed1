"""Reductions that the package itself computes: bitwise, and of sparse tensors."""

from __future__ import annotations

import unittest

import groups
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

COUNTS = (0, 1, 7, 70_001)
INTEGERS = (torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
OPS = {ReduceOp.BAND: torch.bitwise_and, ReduceOp.BOR: torch.bitwise_or, ReduceOp.BXOR: torch.bitwise_xor}


def numbers(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers with bits that differ from place to place, and from rank to rank."""
    generator = torch.Generator().manual_seed(rank)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.6
    kind = torch.iinfo(dtype)
    return torch.randint(kind.min, kind.max, (count,), generator=generator, dtype=dtype)


def of_all(op: ReduceOp, count: int, dtype: torch.dtype) -> torch.Tensor:
    total = numbers(0, count, dtype)
    for rank in range(1, dist.get_world_size()):
        total = OPS[op](total, numbers(rank, count, dtype))
    return total


def bits() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in INTEGERS:
        for op in OPS:
            for count in COUNTS:
                what = f"{op} of {dtype} x {count}"
                expected = of_all(op, count, dtype)
                for started in (False, True):
                    tensor = numbers(rank, count, dtype)
                    work = dist.all_reduce(tensor, op, async_op=started)
                    if work is not None:
                        work.wait()
                    assert tensor.equal(expected), what
                root = count % size
                tensor = numbers(rank, count, dtype)
                dist.reduce(tensor, root, op)
                assert tensor.equal(expected if rank == root else numbers(rank, count, dtype)), what
                block = torch.empty(count, dtype=dtype)
                dist.reduce_scatter_tensor(block, numbers(rank, count * size, dtype), op)
                assert block.equal(of_all(op, count * size, dtype)[rank * count :][:count]), what
    columns = numbers(rank, 24, torch.int32).view(4, 6).t()
    dist.all_reduce(columns, ReduceOp.BXOR)
    assert columns.equal(of_all(ReduceOp.BXOR, 24, torch.int32).view(4, 6).t())


def sparse_of(rank: int, dtype: torch.dtype, wide: bool) -> torch.Tensor:
    """Rank r has 3 r elements: some are given twice, some are at the places of other ranks'
    elements."""
    count = 3 * rank
    places = torch.stack([torch.arange(count) * 5 % 7, torch.arange(count) % 4])
    values = torch.arange(count * 2).view(count, 2) + rank + 1
    return torch.sparse_coo_tensor(places, (values if wide else values[:, 0]).to(dtype), (7, 4, 2) if wide else (7, 4))


def sparse() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.int64, torch.float32, torch.float64):
        for wide in (False, True):
            expected = sum(sparse_of(peer, dtype, wide).to_dense() for peer in range(size))
            for started in (False, True):
                tensor = sparse_of(rank, dtype, wide)
                work = dist.all_reduce(tensor, async_op=started)
                if work is not None:
                    work.wait()
                assert tensor.is_sparse and tensor.to_dense().equal(expected), (tensor, expected)


def sparse_gradients() -> list[float]:
    """Losses of a model with sparse gradients."""
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Embedding(20, 8, sparse=True), torch.nn.Linear(8, 3))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randint(20, (6,))).pow(2).mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def refused() -> None:
    def expect(text: str, tensor: torch.Tensor, op: ReduceOp) -> None:
        try:
            dist.all_reduce(tensor, op)
        except RuntimeError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"{text}: nothing was raised")

    rank = dist.get_rank()
    expect("no reduction BXOR of torch.float32", torch.ones(2), ReduceOp.BXOR)
    expect("only the sum", sparse_of(rank, torch.float32, False), ReduceOp.MAX)
    shape = (7, 4 + rank)
    other = f"expected {list(shape)}"
    expect(other, torch.sparse_coo_tensor(torch.zeros(2, 1), torch.ones(1), shape), ReduceOp.SUM)
    # The group works on.
    dist.barrier()


class Reductions(unittest.TestCase):
    def test_bits(self) -> None:
        for size in (2, 3):
            with self.subTest(ranks=size):
                groups.run(bits, size)
        for backend in groups.BACKENDS[1:]:
            groups.run(bits, 2, backend=backend)

    def test_sparse_tensors(self) -> None:
        for size in (2, 3):
            with self.subTest(ranks=size):
                groups.run(sparse, size)
        for backend in groups.BACKENDS[1:]:
            groups.run(sparse, 2, backend=backend)

    def test_sparse_gradients(self) -> None:
        self.assertEqual(groups.run(sparse_gradients, 2), groups.run(sparse_gradients, 2, backend="gloo"))

    def test_what_is_refused(self) -> None:
        groups.run(refused, 2)


if __name__ == "__main__":
    unittest.main()
