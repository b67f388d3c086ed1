"""Draws the table of our own kernels beside NCCL (docs/performance.md) as an SVG. Needs matplotlib.

    python3 benches/plot.py docs/performance.md docs/engine-beside-nccl.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
# Text stays text, and equal figures make equal files.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "spark-ccl", "font.size": 9})

from matplotlib import pyplot  # noqa: E402

SECTION = "## Our own kernels beside NCCL"
UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30}
# By the columns of the table.
LINES = {2: ("NCCL", "#888888", "o"), 3: ("NCCL, symmetric windows", "#d08000", "s"), 4: ("spark-ccl", "#0060c0", "D")}


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    rows = list(table(source.read_text(encoding="utf-8")))
    sizes = [size(row[1]) for row in rows]
    _, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    for column, (label, colour, marker) in LINES.items():
        times = [float(row[column]) for row in rows]
        axes.plot(sizes, times, label=label, color=colour, marker=marker, markersize=4, linewidth=1.5)
    floor = [2.1 + bytes_ / 366e3 for bytes_ in sizes]
    axes.plot(sizes, floor, label="floor: 2.1 us + bytes / 366 GB/s", color="black", linestyle=":", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes[::2], [row[1] for row in rows[::2]], rotation=45)
    axes.set_xlabel("bytes of a rank")
    axes.set_ylabel("us, less is better")
    axes.set_title("all_reduce of bf16 on two H100, in graphs")
    axes.grid(alpha=0.3)
    axes.legend()
    pyplot.savefig(target, metadata={"Date": None})


def table(text: str) -> list[list[str]]:
    """The rows of the first table of the section."""
    lines = iter(text[text.index(SECTION) :].splitlines())
    rows = []
    for line in lines:
        if line.startswith("| "):
            rows.append([cell.strip() for cell in line.split("|")])
        elif rows:
            break
    return rows[2:]


def size(text: str) -> int:
    number, unit = text.split()
    return int(number) << UNITS[unit]


main()
