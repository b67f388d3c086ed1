"""Messages between two ranks: by order, by tag, from any rank; and objects as messages."""

from __future__ import annotations

import time
import unittest
from datetime import timedelta

import groups
import torch
import torch.distributed as dist

COUNTS = (0, 1, 7, 300_000)
# Of ranks that send to rank 0.
SENDERS = (1, 2, 3)


def letter(source: int, number: int, count: int) -> torch.Tensor:
    """The message of a rank with this number: no two have the same elements."""
    return torch.arange(count, dtype=torch.float64) * 1000 + source * 100 + number


def same(actual: torch.Tensor, source: int, number: int) -> None:
    assert actual.equal(letter(source, number, actual.numel())), (source, number, actual)


def by_tags() -> None:
    """The receiver takes them in the opposite order, and those without tags between them."""
    rank = dist.get_rank()
    for count in COUNTS:
        if rank == 1:
            works = [dist.isend(letter(1, tag, count), 0, tag=tag) for tag in range(5)]
            for work in works:
                work.wait()
        elif rank == 0:
            for tag in (4, 2, 0, 3, 1):
                tensor = torch.empty(count, dtype=torch.float64)
                assert dist.recv(tensor, 1, tag=tag) == 1
                same(tensor, 1, tag)


def by_order_within_a_tag() -> None:
    rank = dist.get_rank()
    if rank == 1:
        for number in range(20):
            dist.send(letter(1, number, number), 0, tag=number % 2 + 1)
    elif rank == 0:
        for number in (*range(0, 20, 2), *range(1, 20, 2)):
            tensor = torch.empty(number, dtype=torch.float64)
            dist.recv(tensor, 1, tag=number % 2 + 1)
            same(tensor, 1, number)


def started_with_tags() -> None:
    """A long message comes while its receiver waits for something else, whose ranks wait for the
    message."""
    rank = dist.get_rank()
    other, count = 1 - rank, 3_000_000
    tensor = torch.empty(count, dtype=torch.float64)
    coming = dist.irecv(tensor, other, tag=9)
    dist.send(letter(rank, 9, count), other, tag=9)
    dist.barrier()
    coming.wait()
    assert coming.is_completed() and coming.is_success()
    same(tensor, other, 9)
    assert coming.get_future().wait()[0].equal(tensor)


def in_place_with_gaps() -> None:
    rank = dist.get_rank()
    columns = torch.zeros(4, 6, dtype=torch.float64).t()
    if rank == 1:
        columns.copy_(letter(1, 3, 24).view(6, 4))
        dist.send(columns, 0, tag=3)
        dist.send(columns, 0)
    else:
        for take in (lambda: dist.recv(columns, 1, tag=3), lambda: dist.recv(columns)):
            columns.zero_()
            take()
            assert columns.equal(letter(1, 3, 24).view(6, 4))


def from_any(tag: int) -> None:
    """Two messages of each rank: those of one rank arrive in order."""
    rank = dist.get_rank()
    for count in COUNTS:
        if rank == 0:
            seen = {source: 0 for source in SENDERS}
            for _ in range(2 * len(SENDERS)):
                tensor = torch.empty(count, dtype=torch.float64)
                source = dist.recv(tensor, tag=tag)
                same(tensor, source, seen[source])
                seen[source] += 1
            assert set(seen.values()) == {2}, seen
        else:
            for number in range(2):
                dist.send(letter(rank, number, count), 0, tag=tag)
        # The next ones have another length.
        dist.barrier()


def without_tags_from_any() -> None:
    from_any(0)


def with_tags_from_any() -> None:
    from_any(5)


def from_any_beside_known_ranks() -> None:
    """A receive from one rank gets its message, also beside receives from any rank."""
    rank = dist.get_rank()
    if rank == 0:
        known = torch.empty(3, dtype=torch.float64)
        work = dist.irecv(known, 2)
        unknown = torch.empty(3, dtype=torch.float64)
        assert dist.recv(unknown) == 1
        dist.send(torch.ones(1), 2)
        work.wait()
        same(known, 2, 0)
        same(unknown, 1, 0)
    elif rank == 2:
        dist.recv(torch.empty(1), 0)
        dist.send(letter(2, 0, 3), 0)
    else:
        dist.send(letter(1, 0, 3), 0)
    dist.barrier()


def in_parts() -> None:
    """The source is a rank of the whole, whatever group it came by."""
    pair = dist.new_group([1, 3])
    rank = dist.get_rank()
    if rank == 3:
        dist.send(letter(3, 4, 5), 1, group=pair, tag=4)
        dist.send(letter(3, 0, 5), 1, group=pair)
    elif rank == 1:
        tensor = torch.empty(5, dtype=torch.float64)
        assert dist.recv(tensor, group=pair, tag=4) == 3
        same(tensor, 3, 4)
        assert dist.recv(tensor, group=pair) == 3
        same(tensor, 3, 0)


def of_another_length(tag: int) -> str:
    """The error of a receiver that expects more than was sent; the next message still arrives."""
    if dist.get_rank() == 1:
        dist.send(torch.ones(3), 0, tag=tag)
        dist.send(torch.ones(5), 0, tag=7)
        return ""
    text = ""
    try:
        dist.recv(torch.empty(5), tag=tag)
    except RuntimeError as error:
        text = str(error)
    tensor = torch.empty(5)
    dist.recv(tensor, 1, tag=7)
    assert tensor.tolist() == [1.0] * 5
    return text


def of_another_length_without_tags() -> str:
    return of_another_length(0)


def of_another_length_with_tags() -> str:
    return of_another_length(2)


def never_sent() -> str:
    text = ""
    if dist.get_rank() == 0:
        dist.set_timeout(timedelta(seconds=1))
        try:
            dist.recv(torch.empty(1), 1, tag=6)
        except RuntimeError as error:
            text = str(error)
        dist.set_timeout(timedelta(seconds=60))
    dist.barrier()
    return text


def too_long() -> str:
    """Rank 0 has too little memory for the message from rank 1."""
    import resource

    length = 1 << 28
    try:
        if dist.get_rank() == 0:
            with open("/proc/self/statm") as sizes:
                used = int(sizes.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + length // 2, resource.RLIM_INFINITY))
            dist.recv(torch.empty(1), 1, tag=6)
        else:
            dist.send(torch.zeros(length, dtype=torch.uint8), 0, tag=6)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("there was enough memory")


def sender_has_died() -> tuple[str, float]:
    dist.barrier()
    if dist.get_rank() == 1:
        import os

        os._exit(0)
    began = time.monotonic()
    try:
        dist.recv(torch.empty(1), tag=3)
    except RuntimeError as error:
        return str(error), time.monotonic() - began
    raise AssertionError("rank 1 has died")


def destroyed() -> str:
    """A message that is still expected ends with its group."""
    group = dist.new_group([0, 1])
    work = dist.irecv(torch.empty(1), group=group, tag=3)
    dist.destroy_process_group(group)
    try:
        work.wait()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was sent")


def idle() -> float:
    """Processor time during a second after the last message."""
    if dist.get_rank() == 0:
        dist.recv(torch.empty(1), tag=3)
    else:
        dist.send(torch.ones(1), 0, tag=3)
    began = time.process_time()
    time.sleep(1)
    return time.process_time() - began


def objects() -> None:
    rank = dist.get_rank()
    if rank == 1:
        dist.send_object_list([{"of": 1}, "two"], dst=0)
    elif rank == 0:
        found: list[object] = [None, None]
        assert dist.recv_object_list(found, src=1) == 1
        assert found == [{"of": 1}, "two"]
    gathered: list[object] | None = [None] * dist.get_world_size() if rank == 1 else None
    dist.gather_object({"of": rank}, gathered, dst=1)
    if gathered is not None:
        assert gathered == [{"of": peer} for peer in range(dist.get_world_size())]


class Messages(unittest.TestCase):
    def test_tags(self) -> None:
        for function in (by_tags, by_order_within_a_tag, started_with_tags, in_place_with_gaps):
            with self.subTest(function=function.__name__):
                groups.run(function, 2)

    def test_any_rank(self) -> None:
        for function in (without_tags_from_any, with_tags_from_any, in_parts):
            with self.subTest(function=function.__name__):
                groups.run(function, 4)
        groups.run(from_any_beside_known_ranks, 3)

    @groups.beside_others
    def test_tags_beside_another_backend(self) -> None:
        groups.run(by_tags, 2, backend=groups.MIXED)

    def test_other_lengths_than_expected(self) -> None:
        text = groups.run(of_another_length_without_tags, 2)[0]
        self.assertIn("rank 1 has sent 3 elements of float32 with tag 0; expected 5", text)
        text = groups.run(of_another_length_with_tags, 2)[0]
        self.assertIn("rank 1 has sent 12 bytes with tag 2; expected 5", text)

    @groups.since(2, 15)
    def test_what_is_never_sent(self) -> None:
        self.assertIn("rank 1 has sent nothing with tag 6", groups.run(never_sent, 2)[0])

    def test_a_message_that_is_too_long_for_the_memory(self) -> None:
        for text in groups.run(too_long, 2, destroys=False):
            self.assertIn("could not be received", text)
            self.assertIn("memory", text)

    def test_a_sender_that_has_died_is_named(self) -> None:
        text, seconds = groups.run(sender_has_died, 2, dies=(1,), destroys=False)[0]
        self.assertIn("rank 1", text)
        # A guard: the timeout of the group is 60 s.
        self.assertLess(seconds, 30)

    @groups.since(2, 7)
    def test_the_end_of_a_group_before_its_messages(self) -> None:
        for text in groups.run(destroyed, 2):
            self.assertIn("destroyed before the message came", text)

    def test_no_processor_is_used_after_the_last_message(self) -> None:
        for seconds in groups.run(idle, 2):
            # Of 1 s; a thread that does not sleep would use it all.
            self.assertLess(seconds, 0.3)

    def test_objects(self) -> None:
        groups.run(objects, 3)


if __name__ == "__main__":
    unittest.main()
