"""The model of the example `train` in PyTorch, for benches/training.sh: the same tensors, batch,
text and progress lines, on as many ranks as torchrun has started, with DistributedDataParallel and
gloo where there are several.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

# As in crates/training/examples/train/text.rs.
CHARACTERS = 97
HEADS = 2


class Normal(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.gain


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.normal1, self.normal2 = Normal(width), Normal(width)
        self.joint = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, context, width = x.shape
        parts = self.joint(self.normal1(x)).view(samples, context, 3, HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(samples, context, width))
        return x + self.down(functional.silu(self.up(self.normal2(x))))


class Transformer(nn.Module):
    def __init__(self, width: int, context: int, layers: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.normal = Normal(width)
        self.output = nn.Linear(width, CHARACTERS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.characters(x) + self.positions(torch.arange(x.shape[1]))
        return self.output(self.normal(self.layers(x)))


def read(folder: Path) -> torch.Tensor:
    text = b"".join(file.read_bytes() for file in sorted(folder.glob("*.md")))
    numbers = [0 if it == 10 else it - 31 if 32 <= it < 127 else CHARACTERS - 1 for it in text]
    return torch.tensor(numbers)


def main() -> None:
    options = dict(argument.split("=") for argument in sys.argv[1:])
    width, context, layers, batch, steps, every = (
        int(options[name]) for name in ("width", "context", "layers", "batch", "steps", "every"))
    torch.set_num_threads(1)
    torch.manual_seed(7)
    ranks = rank = 0
    model: nn.Module = Transformer(width, context, layers)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
        rank, ranks = dist.get_rank(), dist.get_world_size()
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4)
    text = read(Path(options["text"]))
    samples = text.unfold(0, context + 1, context)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(7))
    own = batch // max(ranks, 1)
    since = time.monotonic()
    for step in range(1, steps + 1):
        begin = ((step - 1) * batch + rank * own) % (len(samples) - batch)
        taken = samples[order[begin:begin + own]]
        scores = model(taken[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), taken[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0:
            speed = batch * every / (time.monotonic() - since)
            if rank == 0:
                print(f"step {step}: loss {loss.item():.9f}, {speed:.2f} samples/s", flush=True)
            since = time.monotonic()
    if ranks:
        dist.destroy_process_group()


main()
