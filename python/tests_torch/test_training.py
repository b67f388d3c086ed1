"""Training as with any other backend, and what becomes of it when a rank dies."""

from __future__ import annotations

import os
import resource
import signal
import time
import unittest
from pathlib import Path

import groups
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from spark_ccl import bench
from spark_ccl.torch.versions import VERSION


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))


def loss_of(layers: torch.nn.Module, device: torch.device | None = None) -> torch.Tensor:
    return layers(torch.randn(16, 32).to(device)).pow(2).mean()


def losses() -> list[float]:
    return losses_of(DistributedDataParallel(model(), bucket_cap_mb=0.01))


def losses_of(layers: torch.nn.Module, device: torch.device | None = None) -> list[float]:
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    found = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(layers, device)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def page_faults_of_benchmark() -> int:
    """The least of several steps, once all memory is there."""
    bench.keep_freed_memory()
    step = bench.of_training(dist.group.WORLD)
    counts = []
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(counts[3:])


def balances_memory() -> bool:
    """Whether the kernel unmaps pages to see who uses them, which makes page faults of its own."""
    try:
        return Path("/proc/sys/kernel/numa_balancing").read_text().strip() != "0"
    except FileNotFoundError:
        return False


def unsynchronized_and_uneven() -> None:
    from torch.distributed.algorithms.join import Join

    layers = DistributedDataParallel(model())
    with layers.no_sync():
        loss_of(layers).backward()
    loss_of(layers).backward()
    with Join([layers]):
        for _ in range(3 + dist.get_rank()):
            loss_of(layers).backward()
    same_everywhere(layers.module)


def same_everywhere(layers: torch.nn.Module) -> None:
    for parameter in layers.parameters():
        copies = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, parameter.detach())
        assert all(copy.equal(copies[0]) for copy in copies)


def sharded_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    layers = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(layers.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(layers).backward()
        optimizer.step()
    same_everywhere(layers.module)


def sharded_parameters() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    whole, parts = model(), model()
    for layer in parts:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(parts, mesh=mesh)
    optimizers = [torch.optim.SGD(layers.parameters(), lr=0.1) for layers in (whole, parts)]
    for _ in range(3):
        torch.manual_seed(2)
        expected = loss_of(whole)
        torch.manual_seed(2)
        actual = loss_of(parts)
        torch.testing.assert_close(actual, expected)
        for loss, optimizer in zip((expected, actual), optimizers):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = model()
    parts = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(2)
    given = torch.randn(16, 32)
    torch.testing.assert_close(parts(given), whole(given))


def distributed_tensors() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(24.0).reshape(6, 4)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert rows.redistribute(mesh, [Replicate()]).to_local().equal(whole)
    assert rows.redistribute(mesh, [Shard(1)]).full_tensor().equal(whole)


def pipeline() -> None:
    """Each rank has a half of the layers; activations and their gradients go by messages."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, device = dist.get_rank(), torch.device("cpu")
    whole = model()
    halves = (torch.nn.Sequential(*whole[:2]), torch.nn.Sequential(*whole[2:]))
    torch.manual_seed(2)
    given, expected = torch.randn(16, 32), torch.randn(16, 8)
    loss_fn = torch.nn.functional.mse_loss
    schedule = ScheduleGPipe(PipelineStage(halves[rank], rank, 2, device), n_microbatches=4, loss_fn=loss_fn)
    if rank == 0:
        schedule.step(given)
    else:
        losses: list[torch.Tensor] = []
        output = schedule.step(target=expected, losses=losses)
        torch.testing.assert_close(output, whole(given))
    piped = [parameter.grad.clone() for parameter in halves[rank].parameters()]
    for half in halves:
        half.zero_grad()
    # The mean over microbatches, as of the schedule.
    loss_fn(whole(given), expected).backward()
    for actual, parameter in zip(piped, halves[rank].parameters()):
        torch.testing.assert_close(actual, parameter.grad)


def loaded_by_workers() -> None:
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    data = TensorDataset(torch.arange(40.0))
    total = torch.zeros(())
    loader = DataLoader(
        data, batch_size=4, sampler=DistributedSampler(data), num_workers=2, multiprocessing_context="fork"
    )
    for (batch,) in loader:
        total += batch.sum()
    dist.all_reduce(total)
    assert total.item() == 780


def compressed_gradients() -> None:
    """Hooks that make further calls in the callbacks of their first."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook, quantization_hooks

    state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    hooks = (
        (state, powerSGD_hook.powerSGD_hook),
        (dist.group.WORLD, quantization_hooks.quantization_pertensor_hook),
    )
    if VERSION < (2, 15):
        # Its older forms are for GPUs alone.
        hooks = hooks[:1]
    for given, hook in hooks:
        layers = DistributedDataParallel(model())
        layers.register_comm_hook(given, hook)
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
        torch.manual_seed(dist.get_rank())
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(layers).backward()
            optimizer.step()
        same_everywhere(layers.module)


def death() -> tuple[str, float]:
    layers = DistributedDataParallel(model())
    for step in range(1000):
        began = time.monotonic()
        try:
            loss_of(layers).backward()
            if dist.get_rank() == 1 and step == 5:
                # The others may still be in this step.
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()
        except RuntimeError as error:
            return str(error), time.monotonic() - began
    raise AssertionError("a rank was killed")


class Training(unittest.TestCase):
    @unittest.skipIf(balances_memory(), "kernel.numa_balancing is not 0")
    # That is jemalloc, tcmalloc or mimalloc.
    @unittest.skipIf("malloc" in os.environ.get("LD_PRELOAD", ""), "another malloc is preloaded")
    def test_steps_of_the_benchmark_reuse_memory(self) -> None:
        # A step has 50 MB of gradients, which are 12,000 pages.
        for faults in groups.run(page_faults_of_benchmark, 2):
            self.assertLess(faults, 3000)

    def test_losses_are_those_of_gloo(self) -> None:
        """With two ranks, of which the sum has no order, each bit is the same."""
        self.assertEqual(groups.run(losses, 2), groups.run(losses, 2, backend="gloo"))

    def test_losses_of_more_ranks_are_close_to_those_of_gloo(self) -> None:
        """Sums of three and more depend on their order, and backends add up in different ones."""
        for ours, theirs in zip(groups.run(losses, 3), groups.run(losses, 3, backend="gloo")):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))

    def test_unsynchronized_steps_and_uneven_inputs(self) -> None:
        groups.run(unsynchronized_and_uneven, 2)

    def test_sharded_optimizer(self) -> None:
        groups.run(sharded_optimizer, 2)

    @groups.since(2, 6)
    def test_sharded_parameters(self) -> None:
        groups.run(sharded_parameters, 2)

    @groups.since(2, 5)
    def test_tensor_parallel_layers(self) -> None:
        groups.run(tensor_parallel, 2)

    @groups.since(2, 5)
    def test_distributed_tensors(self) -> None:
        groups.run(distributed_tensors, 2)

    @groups.since(2, 15)
    def test_a_pipeline(self) -> None:
        groups.run(pipeline, 2)

    def test_workers_that_load_data(self) -> None:
        groups.run(loaded_by_workers, 2)

    def test_hooks_that_compress_gradients(self) -> None:
        groups.run(compressed_gradients, 2)

    def test_a_killed_rank_is_named(self) -> None:
        first, _, third = groups.run(death, 3, dies=(1,))
        for text, seconds in (first, third):
            self.assertIn("rank 1", text)
            # A guard: the timeout of the group is 60 s.
            self.assertLess(seconds, 30)


if __name__ == "__main__":
    unittest.main()
