"""The pictures of README.md and docs/performance.md, drawn from the data. Only drawing needs
matplotlib (3.6 or newer): each picture has digests of what it was drawn from, and of itself."""

from __future__ import annotations

import hashlib
import inspect
import io
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import data

BLUE, GREEN, ORANGE, GREY, PURPLE = "#0060c0", "#2a8a3e", "#d08000", "#888888", "#8040a0"


@dataclass(frozen=True)
class Line:
    """The nth column of this head in a table of a data file. With `of`, only the rows with that
    first cell. Where the table may lack the column, the picture then lacks the line."""

    label: str
    colour: str
    name: str
    head: str
    nth: int = 0
    of: str = ""
    table: int = 0
    may_lack: bool = field(default=False, repr=False)

    def is_there(self) -> bool:
        return not self.may_lack or self.head in data.load(self.name).tables[self.table].heads

    def points(self) -> tuple[list[int], list[float]]:
        table = data.load(self.name).tables[self.table]
        cells = zip(table.rows, table.column("bytes"), table.column(self.head, self.nth))
        found = [(data.size(size), data.number(cell)) for row, size, cell in cells
                 if cell and self.of in ("", row[0])]
        return [size for size, _ in found], [value for _, value in found]


@dataclass(frozen=True)
class Picture:
    file: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    # Microseconds of a call, and bytes per microsecond, that nothing can beat.
    floor: tuple[float, float] = ()


HOST, TCP, TORCH = "host/all_reduce-hot", "host/tcp", "torch/one-host"
KERNELS, CALL = "gpu/kernels-beside-nccl", "all_reduce"
PICTURES = (
    Picture("docs/how-fast.svg", "all_reduce: time of others / time of spark-ccl", "times", (
        Line("the faster of Open MPI and MPICH (host, 2 ranks)", BLUE, HOST, "ratio"),
        Line("the faster of these, ours in memory of comm.alloc", GREEN, HOST, "ratio", 1),
        Line("gloo (PyTorch, CPU, 2 ranks)", PURPLE, TORCH, "ratio", 0, CALL),
        Line("the faster of NCCL's two ways (two H100, graphs)", ORANGE, KERNELS, "ratio"),
    )),
    Picture("docs/host-memory.svg", "all_reduce in shared memory, 2 ranks", "us", (
        Line("Open MPI", GREY, HOST, "Open MPI"),
        Line("Open MPI 5", PURPLE, HOST, "Open MPI 5", may_lack=True),
        Line("MPICH", ORANGE, HOST, "MPICH"),
        Line("spark-ccl", BLUE, HOST, "spark-ccl"),
        Line("spark-ccl, memory of comm.alloc", GREEN, HOST, "spark-ccl, registered"),
    )),
    Picture("docs/gpus.svg", "all_reduce of bf16 on two H100, in graphs", "us", (
        Line("NCCL", GREY, KERNELS, "NCCL, graph"),
        Line("NCCL, symmetric windows", ORANGE, KERNELS, "NCCL symmetric, graph"),
        Line("spark-ccl", BLUE, KERNELS, "engine, graph"),
    ), (2.1, 366e3)),
    Picture("docs/pytorch.svg", "PyTorch's all_reduce of tensors on the CPU", "us", (
        Line("gloo, 2 ranks", GREY, TORCH, "gloo us", 0, CALL),
        Line("spark_ccl, 2 ranks", BLUE, TORCH, "spark_ccl us", 0, CALL),
        Line("gloo, 4 ranks", ORANGE, TORCH, "gloo us", 0, CALL, 1),
        Line("spark_ccl, 4 ranks", GREEN, TORCH, "spark_ccl us", 0, CALL, 1),
    )),
    Picture("docs/tcp.svg", "all_reduce over TCP, one host, 2 ranks", "us", (
        Line("Open MPI", GREY, TCP, "Open MPI"),
        Line("Open MPI 5", PURPLE, TCP, "Open MPI 5", may_lack=True),
        Line("MPICH", ORANGE, TCP, "MPICH"),
        Line("spark-ccl", BLUE, TCP, "spark-ccl"),
    )),
)


def stale() -> list[str]:
    """The pictures that were drawn from other data, or changed since."""
    return [picture.file for picture in PICTURES if not is_drawn(picture)]


def is_drawn(picture: Picture) -> bool:
    file = Path(picture.file)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    drawn, _, signed = text.rpartition("<!--")
    return signed == signature(picture, drawn)


def known(picture: Picture) -> Picture:
    """The picture of the lines that the data have."""
    return replace(picture, lines=tuple(line for line in picture.lines if line.is_there()))


def signature(picture: Picture, drawn: str) -> str:
    """The end of the file."""
    own = hashlib.sha256(drawn.encode()).hexdigest()
    return f" Made from {digest(picture)}, as {own} -->\n"


def digest(picture: Picture) -> str:
    """The digest of its figures, and of how they are drawn."""
    picture = known(picture)
    try:
        points = [line.points() for line in picture.lines]
    except (IndexError, ValueError) as error:
        raise SystemExit(f"{picture.file}: its data: {error!r}") from error
    content = repr((picture, points, inspect.getsource(plot)))
    return hashlib.sha256(content.encode()).hexdigest()


def draw() -> None:
    wanted = [known(picture) for picture in PICTURES if not is_drawn(picture)]
    if not wanted:
        return
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit(f"{wanted[0].file}: drawing needs matplotlib: {error}") from error

    matplotlib.use("svg")
    # Text stays text, and equal figures make equal files.
    settings = {"svg.fonttype": "none", "svg.hashsalt": "spark-ccl", "font.size": 9}
    matplotlib.rcParams.update(settings)
    from matplotlib import pyplot

    for picture in wanted:
        print(f"drawing {picture.file}", file=sys.stderr)
        file = io.StringIO()
        plot(pyplot, picture, file)
        drawn = file.getvalue()
        text = f"{drawn}<!--{signature(picture, drawn)}"
        Path(picture.file).write_text(text, encoding="utf-8")


def plot(pyplot, picture: Picture, file: io.StringIO) -> None:
    figure, axes = pyplot.subplots(figsize=(7.5, 4), layout="constrained")
    ticks: set[int] = set()
    for line in picture.lines:
        sizes, values = line.points()
        ticks.update(sizes)
        axes.plot(sizes, values, label=line.label, color=line.colour, marker="o", markersize=3.5,
                  linewidth=1.5)
    every = sorted(ticks)
    if picture.floor:
        start, rate = picture.floor
        axes.plot(every, [start + size / rate for size in every], color="black", linestyle=":",
                  label=f"floor: {start} us + bytes / {rate / 1e3:.0f} GB/s", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = [8 << 4 * step for step in range(8) if 8 << 4 * step <= every[-1]]
    axes.set_xticks(shown, [named(size) for size in shown])
    axes.set_xlabel("bytes of a rank")
    if picture.unit == "times":
        axes.axhline(1, color="black", linewidth=1)
        axes.set_yticks([1, 2, 5, 10, 50, 150], ["1", "2", "5", "10", "50", "150"])
        axes.set_ylabel("above 1, spark-ccl is faster")
    else:
        axes.set_ylabel(f"{picture.unit}, less is better")
    axes.minorticks_off()
    axes.set_title(picture.title)
    axes.grid(alpha=0.3)
    if picture.unit == "times":
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=2)
    else:
        axes.legend()
    made = "Made by benches/measurements. Do not edit."
    figure.savefig(file, format="svg", metadata={"Date": None, "Description": made})
    pyplot.close(figure)


def named(size: int) -> str:
    for unit, shift in reversed(data.UNITS.items()):
        if size >> shift:
            return f"{size >> shift} {unit}"
    return "0 B"
