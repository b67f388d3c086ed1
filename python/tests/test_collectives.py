"""Every collective against results that NumPy computes, between processes."""

from __future__ import annotations

import unittest
from typing import Any

import jobs
import numpy
import values
from values import COUNTS, TYPES, assert_reduced, assert_same, of_rank, reduced

from spark_ccl import Communicator, DType, InvalidError, Op, group


def reductions(comm: Communicator) -> None:
    for dtype in TYPES:
        for op in Op:
            for count in COUNTS:
                what = f"{dtype} {op.name} x {count}"
                own = of_rank(comm.rank, count, dtype)

                apart = numpy.empty_like(own)
                comm.all_reduce(own, apart, op=op)
                assert_reduced(apart, op, comm.size, what)
                assert_same(own, of_rank(comm.rank, count, dtype), what)

                here = own.copy()
                comm.all_reduce(here, op=op)
                assert_reduced(here, op, comm.size, what)

                root = count % comm.size
                to_root = own.copy()
                comm.reduce(to_root, root=root, op=op)
                if comm.rank == root:
                    assert_reduced(to_root, op, comm.size, what)
                else:
                    assert_same(to_root, own, what)


def scattered_reductions(comm: Communicator) -> None:
    for dtype in TYPES:
        for count in COUNTS:
            own = of_rank(comm.rank, count * comm.size, dtype)
            block = numpy.empty(count, dtype)
            comm.reduce_scatter(own, block)
            whole = reduced(Op.SUM, comm.size, count * comm.size, dtype)
            assert_same(block, whole[comm.rank * count :][:count], f"{dtype} x {count}")


def moves(comm: Communicator) -> None:
    for dtype in TYPES:
        for count in COUNTS:
            what = f"{dtype} x {count}"
            own = of_rank(comm.rank, count, dtype)
            all_own = numpy.concatenate([of_rank(rank, count, dtype) for rank in range(comm.size)])
            root = count % comm.size

            every = numpy.empty(count * comm.size, dtype)
            comm.all_gather(own, every)
            assert_same(every, all_own, what)

            in_place = numpy.zeros(count * comm.size, dtype)
            mine = in_place[comm.rank * count :][:count]
            mine[:] = own
            comm.all_gather(mine, in_place)
            assert_same(in_place, all_own, what)

            from_root = own.copy()
            comm.broadcast(from_root, root=root)
            assert_same(from_root, of_rank(root, count, dtype), what)

            at_root = numpy.empty(count * comm.size, dtype) if comm.rank == root else None
            comm.gather(own, at_root, root=root)
            if at_root is not None:
                assert_same(at_root, all_own, what)

            block = numpy.empty(count, dtype)
            comm.scatter(all_own if comm.rank == root else None, block, root=root)
            assert_same(block, own, what)


def exchanges(comm: Communicator) -> None:
    size, rank = comm.size, comm.rank
    for dtype in TYPES:
        for count in COUNTS:
            what = f"{dtype} x {count}"
            sent = of_rank(rank, count * size, dtype)
            received = numpy.empty_like(sent)
            comm.all_to_all(sent, received)
            blocks = [of_rank(peer, count * size, dtype)[rank * count :][:count] for peer in range(size)]
            assert_same(received, numpy.concatenate(blocks), what)

            # Rank a sends count + a + 2 b elements to rank b.
            to = [count + rank + 2 * peer for peer in range(size)]
            come = [count + peer + 2 * rank for peer in range(size)]
            sent = of_rank(rank, sum(to), dtype)
            received = numpy.empty(sum(come), dtype)
            comm.all_to_all_v(sent, to, received, come)
            begins = [sum(count + peer + 2 * other for other in range(rank)) for peer in range(size)]
            blocks = [of_rank(peer, begins[peer] + come[peer], dtype)[begins[peer] :] for peer in range(size)]
            assert_same(received, numpy.concatenate(blocks), what)

            own = of_rank(rank, count, dtype)
            around = numpy.empty_like(own)
            with group():
                comm.send(own, (rank + 1) % size)
                comm.recv(around, (rank - 1) % size)
            assert_same(around, of_rank((rank - 1) % size, count, dtype), what)
    comm.barrier()


def probes(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    previous = (rank - 1) % size
    assert comm.probe(previous) is None
    comm.barrier()
    comm.send(of_rank(rank, 3, "float64"), (rank + 1) % size)
    while (found := comm.probe(previous)) is None:
        pass
    assert found == (DType.FLOAT64, 3), found
    received = numpy.empty(found[1])
    comm.recv(received, previous)
    assert_same(received, of_rank(previous, 3, "float64"), "probed")
    assert comm.probe(previous) is None
    try:
        comm.probe(size)
    except InvalidError as error:
        assert f"no rank {size}" in str(error), error
    else:
        raise AssertionError("there is no such rank")


def factors(comm: Communicator) -> None:
    for dtype in ("int32", "float16", "float32", "float64"):
        own = of_rank(comm.rank, 1000, dtype)
        comm.all_reduce(own, factor=comm.rank + 2)
        parts = [of_rank(rank, 1000, dtype) * numpy.dtype(dtype).type(rank + 2) for rank in range(comm.size)]
        assert_same(own, numpy.add.reduce(parts, axis=0, dtype=dtype), dtype)
    unknown: Any
    for unknown in (9, "sum", None):
        try:
            comm.all_reduce(numpy.zeros(1), op=unknown)
        except InvalidError as error:
            assert repr(unknown) in str(error) and "Op.MAX" in str(error), error
        else:
            raise AssertionError(f"{unknown!r} is no operation")


def parts(comm: Communicator) -> tuple[int, int] | None:
    part = comm.split(comm.rank % 2 if comm.rank < 3 else None, key=-comm.rank)
    if part is None:
        return None
    with part:
        total = numpy.array([comm.rank], dtype=numpy.int64)
        part.all_reduce(total)
        return part.rank, int(total[0])


class Collectives(unittest.TestCase):
    def test_reductions(self) -> None:
        for size in (1, 2, 3):
            with self.subTest(ranks=size):
                jobs.run(reductions, size)

    def test_scattered_reductions(self) -> None:
        for size in (1, 2, 4):
            with self.subTest(ranks=size):
                jobs.run(scattered_reductions, size)

    def test_moves(self) -> None:
        for size in (1, 2, 3):
            with self.subTest(ranks=size):
                jobs.run(moves, size)

    def test_exchanges(self) -> None:
        for size in (1, 2, 4):
            with self.subTest(ranks=size):
                jobs.run(exchanges, size)

    def test_messages_that_have_come(self) -> None:
        for size in (1, 3):
            with self.subTest(ranks=size):
                jobs.run(probes, size)

    def test_each_rank_has_a_factor(self) -> None:
        jobs.run(factors, 3)

    def test_parts_of_a_communicator(self) -> None:
        self.assertEqual(jobs.run(parts, 4), [(1, 2), (0, 1), (0, 2), None])

    def test_the_oracle_knows_which_rank_and_place_a_value_has(self) -> None:
        """A result with two slices exchanged must not pass."""
        whole = numpy.concatenate([of_rank(rank, 1000, "uint8") for rank in range(2)])
        with self.assertRaises(AssertionError):
            assert_same(numpy.concatenate([whole[1000:], whole[:1000]]), whole, "exchanged")
        self.assertTrue(all(values.of_rank(0, 300, "int8")[:40] != values.of_rank(1, 300, "int8")[:40]))


if __name__ == "__main__":
    unittest.main()
