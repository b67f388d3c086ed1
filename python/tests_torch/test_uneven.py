"""`all_gather` of tensors whose sizes differ between ranks."""

from __future__ import annotations

import functools
import unittest

import groups
import torch
import torch.distributed as dist
from test_calls import COUNTS, MOVED, of_rank, same


def uneven_lists() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in MOVED:
        for count in COUNTS:
            # The last rank has nothing, where `count` is 0.
            lengths = [count + 3 * (size - 1 - peer) for peer in range(size)]
            expected = [of_rank(peer, lengths[peer], dtype) for peer in range(size)]
            apart = [torch.empty(length, dtype=dtype) for length in lengths]
            together = torch.empty(sum(lengths), dtype=dtype)
            in_place = torch.empty(sum(lengths), dtype=dtype)
            blocks = in_place.split(lengths)
            blocks[rank].copy_(expected[rank])
            dist.all_gather(apart, expected[rank])
            work = dist.all_gather(list(together.split(lengths)), expected[rank], async_op=True)
            assert work is not None and work.wait()
            dist.all_gather(list(blocks), blocks[rank])
            for actual in (apart, together.split(lengths), blocks):
                for tensor, wanted in zip(actual, expected):
                    same(tensor, wanted, f"{dtype}, {lengths}")

    # Rows of tables, of which some lie apart in memory.
    tables = [torch.empty(3, 2 * (peer + 1))[:, ::2] for peer in range(size)]
    dist.all_gather(tables, of_rank(rank, 3 * (rank + 1), torch.float32).view(3, -1))
    for peer, table in enumerate(tables):
        same(table, of_rank(peer, 3 * (peer + 1), torch.float32).view(3, -1), "tables")

    # Lists of even and of uneven tensors in one call.
    both = [[torch.empty(count) for count in (4, peer + 1)] for peer in range(size)]
    own = [of_rank(rank, count, torch.float32) for count in (4, rank + 1)]
    dist.all_gather_coalesced(both, own)
    for peer in range(size):
        for tensor in both[peer]:
            same(tensor, of_rank(peer, tensor.numel(), torch.float32), "all_gather_coalesced")


def lengths_that_differ(first: int, others: int) -> str:
    """The error where the last rank expects one element more of rank 0 than this sends."""
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [first, *[others] * (size - 1)]
    if rank == size - 1:
        lengths[0] += 1
    try:
        dist.all_gather([torch.empty(length) for length in lengths], torch.ones(lengths[rank]))
    except RuntimeError as error:
        return str(error)
    return ""


def wrong_length() -> str:
    """The error where this rank's tensor does not have the length that its list says. No rank sends
    anything, and all go on."""
    rank, size = dist.get_rank(), dist.get_world_size()
    answer = ""
    try:
        dist.all_gather([torch.empty(peer + 1) for peer in range(size)], torch.ones(rank + 2))
    except RuntimeError as error:
        answer = str(error)
    dist.barrier()
    return answer


class Uneven(unittest.TestCase):
    def test_every_rank_gets_all_tensors(self) -> None:
        for size in (2, 3, 4):
            with self.subTest(ranks=size):
                groups.run(uneven_lists, size)

    def test_lengths_that_differ_between_ranks_are_named(self) -> None:
        # Also where all other ranks have equal lengths, and so another call.
        for lengths in ((5, 3), (70_000, 3), (3, 3)):
            with self.subTest(lengths=lengths):
                *_, last = groups.run(functools.partial(lengths_that_differ, *lengths), 3)
                self.assertIn("differs between the ranks: rank", last)

    @groups.beside_others
    def test_beside_another_backend(self) -> None:
        groups.run(uneven_lists, 2, backend=groups.MIXED)

    def test_a_length_that_is_not_that_of_the_list_is_refused(self) -> None:
        for rank, error in enumerate(groups.run(wrong_length, 2)):
            lengths = f"has {rank + 1} elements of torch.float32; expected {rank + 2}"
            self.assertIn(f"the list[{rank}] {lengths}", error)


if __name__ == "__main__":
    unittest.main()
