"""How groups are made, split, waited for and left."""

from __future__ import annotations

import os
import threading
import time
import unittest
from datetime import timedelta

import groups
import torch
import torch.distributed as dist

SECOND = timedelta(seconds=1)


def sum_of_ranks(group: dist.ProcessGroup | None = None) -> float:
    total = torch.full((1000,), float(dist.get_rank()))
    dist.all_reduce(total, group=group)
    assert total.eq(total[0]).all()
    return total[0].item()


def split() -> None:
    rank = dist.get_rank()
    half = dist.split_group(split_ranks=[[2, 0], [1, 3]])
    assert sum_of_ranks(half) == (4 if rank % 2 else 2)
    # The order of the list counts.
    assert dist.get_rank(half) == {2: 0, 0: 1, 1: 0, 3: 1}[rank]
    shared = [torch.tensor(rank) for _ in range(2)]
    dist.all_gather(shared, torch.tensor(rank), group=half)
    assert [int(one) for one in shared] == ([1, 3] if rank % 2 else [2, 0])
    dist.destroy_process_group(half)
    assert sum_of_ranks() == 6


def split_with_ranks_left_over() -> None:
    rank = dist.get_rank()
    pair = dist.split_group(split_ranks=[[1, 3]])
    assert (pair == dist.GroupMember.NON_GROUP_MEMBER) == (rank % 2 == 0)
    if rank % 2:
        assert sum_of_ranks(pair) == 4
        dist.destroy_process_group(pair)
    assert sum_of_ranks() == 6


def many() -> None:
    every = list(range(dist.get_world_size()))
    made = [dist.new_group(every) for _ in range(50)]
    for group in reversed(made):
        assert sum_of_ranks(group) == 1
    for group in made:
        dist.destroy_process_group(group)


def held() -> tuple[int, int]:
    """Open descriptors, and threads."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cycles() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    for cycle in range(200):
        dist.destroy_process_group()
        # The store still has the keys of earlier groups.
        dist.init_process_group("spark_ccl", store=store, rank=rank, world_size=size, timeout=60 * SECOND)
        assert dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()[0][0] == size
        if cycle == 20:
            first, memory = held(), resident()
    # Threads of groups that have ended need a moment.
    deadline = time.monotonic() + 30
    while any(now > then for now, then in zip(held(), first)):
        assert time.monotonic() < deadline, f"descriptors and threads: {held()}, and {first} after 20 cycles"
        time.sleep(0.1)
    grown = resident() - memory
    # Of 180 cycles; the allocator keeps a little.
    assert grown < 8 << 20, f"{grown} bytes more than after 20 cycles"


def late_start() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    # Two minutes otherwise.
    os.environ["SPARK_CCL_INIT_TIMEOUT"] = "1"
    time.sleep(3 * rank)
    store = dist.PrefixStore("again", store)
    dist.init_process_group("spark_ccl", store=store, rank=rank, world_size=size, timeout=60 * SECOND)
    assert sum_of_ranks() == 1


def never_started() -> str:
    """The errors of ranks when others do not come to a group."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    if rank == 0:
        try:
            dist.init_process_group("spark_ccl", store=store, rank=rank, world_size=size, timeout=SECOND)
        except RuntimeError as error:
            return str(error)
    elif rank == 2:
        try:
            dist.init_process_group("spark_ccl", store=store, rank=rank, world_size=size, timeout=3 * SECOND)
        except RuntimeError as error:
            return str(error)
    return ""


def idle() -> float:
    assert sum_of_ranks() == 1
    began = time.process_time()
    time.sleep(2)
    return time.process_time() - began


def late(wait_for: object) -> str:
    """The error of rank 0 when the others do not come."""
    store = dist.distributed_c10d._get_default_store()
    text = ""
    if dist.get_rank() == 0:
        try:
            wait_for()
        except RuntimeError as error:
            text = str(error)
        store.set("over", "1")
    store.wait(["over"])
    return text


def monitored_barrier() -> str:
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=60 * SECOND, wait_all_ranks=True)
    return late(lambda: dist.monitored_barrier(timeout=SECOND))


def barrier_with_a_time() -> str:
    dist.set_timeout(60 * SECOND)
    dist.barrier()

    def wait() -> None:
        dist.set_timeout(SECOND)
        dist.barrier()

    return late(wait)


def started_with_a_time() -> str:
    """A call that is only started, and whose options have a time."""
    dist.set_timeout(60 * SECOND)
    dist.barrier()
    options = dist.AllreduceOptions()
    options.timeout = SECOND
    options.asyncOp = True
    return late(lambda: dist.group.WORLD.allreduce([torch.ones(3)], options).wait())


def without_limit() -> None:
    """Timeouts that are longer than the library's longest."""
    year = timedelta(days=365)
    group = dist.new_group(timeout=year)
    assert sum_of_ranks(group) == 1
    options = dist.AllreduceOptions()
    options.timeout = 2 * year
    group.allreduce([torch.ones(3)], options).wait()
    group.set_timeout(year)
    assert sum_of_ranks(group) == 1
    dist.destroy_process_group(group)


def wait_with_a_time() -> None:
    tensor = torch.ones(3)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)

        def wait() -> None:
            work.wait(SECOND / 10)

        assert "not done after 0.1 s" in late(wait)
        work.wait()
    else:
        late(lambda: None)
        dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3


def completed() -> None:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    assert work.is_success() and work.exception() is None
    # Works of calls that wait are done, too.
    assert dist.group.WORLD.allreduce([torch.ones(3)], dist.AllreduceOptions()).wait()


def aborted() -> str:
    if dist.get_rank() == 1:
        dist.group.WORLD.abort()
        return ""
    try:
        dist.barrier()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("rank 1 has aborted")


def ends_in_the_middle() -> str:
    """Rank 1 ends like a careless program: in a call, and without destroying its group."""
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    if dist.get_rank() == 1:
        # Nobody answers.
        dist.irecv(tensor, 0).get_future()
        return ""
    try:
        dist.all_reduce(tensor)
        dist.barrier()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("rank 1 has gone")


def forked() -> None:
    """The group is the parent's: a child is told so, and may end as it likes."""
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(2))
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sum_of_ranks() == 1


def destroyed_in_a_call() -> str:
    """Another thread waits for a message that does not come, until the group is destroyed."""
    group = dist.new_group([0, 1])
    texts = []
    if dist.get_rank() == 0:
        work = group.recv([torch.ones(1)], 1, 0)

        def wait() -> None:
            try:
                work.wait()
            except RuntimeError as error:
                texts.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        dist.destroy_process_group(group)
        thread.join()
    dist.barrier()
    return "".join(texts)


def threads() -> None:
    """Each thread has a group."""
    made = [dist.new_group([0, 1]) for _ in range(4)]
    wrong = []

    def use(group: dist.ProcessGroup) -> None:
        for _ in range(50):
            if sum_of_ranks(group) != 1:
                wrong.append(group)

    users = [threading.Thread(target=use, args=(group,)) for group in made]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert not wrong


def compiled() -> None:
    import torch.distributed._functional_collectives as functional

    rank = dist.get_rank()

    def step(tensor: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(tensor * 2, "sum", dist.group.WORLD)
        return functional.all_gather_tensor(total + rank, 0, dist.group.WORLD) + 1

    def in_place(tensor: torch.Tensor) -> torch.Tensor:
        doubled = tensor * 2
        dist.all_reduce(doubled)
        return doubled + 1

    given = torch.full((5,), float(rank))
    for function, expected in ((step, [3.0] * 5 + [4.0] * 5), (in_place, [3.0] * 5)):
        # Without C++ code, for which there may be no compiler.
        graph = torch.compile(function, backend="aot_eager", fullgraph=True)
        assert graph(given).tolist() == function(given).tolist() == expected


def functional_results() -> None:
    """Results of functional collectives go into other calls before anything has waited for them."""
    import torch.distributed._functional_collectives as functional

    def total() -> torch.Tensor:
        return functional.all_reduce(torch.full((3,), 1.0 + dist.get_rank()), "sum", dist.group.WORLD)

    again = total()
    dist.all_reduce(again)
    assert again.tolist() == [6.0] * 3
    gathered = torch.zeros(6)
    dist.all_gather_into_tensor(gathered, total())
    assert gathered.tolist() == [3.0] * 6
    lists = [torch.zeros(3), torch.zeros(3)]
    dist.all_to_all(lists, [torch.ones(3), total()])
    assert [one.tolist() for one in lists] == [[1.0 + 2 * dist.get_rank()] * 3] * 2


class Groups(unittest.TestCase):
    @groups.since(2, 15)
    def test_split_groups(self) -> None:
        for backend in groups.BACKENDS:
            with self.subTest(backend=backend):
                groups.run(split, 4, backend=backend)
        groups.run(split_with_ranks_left_over, 4)

    def test_many_groups(self) -> None:
        groups.run(many, 2)

    def test_groups_in_threads(self) -> None:
        groups.run(threads, 2)

    def test_nothing_is_left_of_groups(self) -> None:
        groups.run(cycles, 2)

    def test_ranks_that_start_late(self) -> None:
        groups.run(late_start, 2)

    def test_ranks_that_do_not_start_are_named(self) -> None:
        of_first, _, of_other, _ = groups.run(never_started, 4, destroys=False)
        self.assertIn("of 4 ranks, these have not come", of_first)
        self.assertIn("rank 1, rank 3;", of_first)
        self.assertIn("rank 2 gave up after 3.0 s: rank 0 has not sent", of_other)

    def test_idle_ranks_use_no_processor(self) -> None:
        for seconds in groups.run(idle, 2):
            # Of 2 s; a thread that does not sleep would use all.
            self.assertLess(seconds, 0.5)

    @groups.since(2, 15)
    def test_late_ranks_are_named(self) -> None:
        for function in (monitored_barrier, barrier_with_a_time, started_with_a_time):
            for backend in groups.BACKENDS:
                with self.subTest(function=function.__name__, backend=backend):
                    text = groups.run(function, 2, backend=backend, destroys=False)[0]
                    self.assertIn("gave up after 1", text)
                    self.assertIn("rank 1", text)

    def test_times_without_a_limit(self) -> None:
        groups.run(without_limit, 2)

    def test_waits_with_a_time(self) -> None:
        groups.run(wait_with_a_time, 2)

    def test_completed_works(self) -> None:
        groups.run(completed, 2)

    def test_aborts_reach_all(self) -> None:
        text = groups.run(aborted, 2)[0]
        self.assertIn("rank 1", text)
        self.assertIn("the process group was aborted", text)

    def test_an_end_without_an_end_of_the_group(self) -> None:
        self.assertIn("rank 1", groups.run(ends_in_the_middle, 2, destroys=False)[0])

    def test_forked_children_have_no_group(self) -> None:
        groups.run(forked, 2)

    @groups.since(2, 7)
    def test_a_group_that_is_destroyed_in_a_call(self) -> None:
        self.assertIn("destroyed before its calls were done", groups.run(destroyed_in_a_call, 2)[0])

    def test_compiled_collectives(self) -> None:
        for backend in groups.BACKENDS:
            with self.subTest(backend=backend):
                groups.run(compiled, 2, backend=backend)
                groups.run(functional_results, 2, backend=backend)


if __name__ == "__main__":
    unittest.main()
