"""Writes tables for people."""

import datetime

import machine
from contestants import Floor, Ours, Peer
from tables import LARGE, LARGE_ROUNDS, SHARE_FROM

WAYS = ("out of place", "in place")


def machine_and_run(options, start):
    """What the tables have in common. `start` is that of a run that has measured all of them."""
    if start is None:
        run = "The tables are of several runs: each names its date and its commit."
    else:
        run = (f"All tables are of one run: {start:%Y-%m-%d %H:%M} to {datetime.datetime.now():%H:%M}, "
               f"spark-ccl {machine.version(options.spark_perf)}.")
    return f"{machine.describe()}\n\n{run}"


def head(options, table, load):
    """Of a table. The load average was taken before its first run, and so is that of others."""
    large = f" ({LARGE_ROUNDS} from 128 MiB on)" if max(table.sizes) > LARGE else ""
    return (f"{datetime.date.today().isoformat()}, spark-ccl {machine.version(options.spark_perf)}, "
            f"median of {options.rounds} rounds{large}, load average before {load:.2f}.")


def render(table, lines, head_line):
    parts = [f"### {table.title}", head_line]
    for way, name in enumerate(WAYS):
        parts += [f"**{name.capitalize()}**", grid(table, lines, way)]
    return "\n\n".join(parts + settings(table, lines))


def grid(table, lines, way):
    rows = [row(table, line, way) for line in lines]
    heads = [head for head, _ in rows[0]]
    cells = [heads, ["---:"] * len(heads), *([cell for _, cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def row(table, line, way):
    """Pairs of the column's head and the cell; times in microseconds."""
    bests = [line.best(i, way) for i in range(len(table.contestants))]
    by_title = {contestant.title: best for contestant, best in zip(table.contestants, bests)}
    peers = [best for contestant, best in zip(table.contestants, bests)
             if isinstance(contestant, Peer)]
    # Without peers, the others are compared with the first.
    rival = min(peers or bests[:1], key=lambda best: best.wall)
    cells = [("bytes", binary(line.size))]
    for contestant, best in zip(table.contestants, bests):
        shows_cpu = table.shows_cpu and not isinstance(contestant, Floor)
        cells.append((contestant.title, times(best, shows_cpu)))
        if isinstance(contestant, Ours) and best is not rival:
            cells.append(("ratio", f"{rival.wall / best.wall:.2f}"))
            if contestant.floor:
                cells.append(("share of floor",
                              share(by_title[contestant.floor], best, line.size)))
    return cells + [("spread", f"{100 * max(best.spread for best in bests):.0f} %")]


def share(floor, ours, size):
    return f"{100 * floor.wall / ours.wall:.0f} %" if size >= SHARE_FROM else ""


def settings(table, lines):
    """Which setting of each peer was the best, and which others were tried."""
    sentences = []
    for i, contestant in enumerate(table.contestants):
        if not isinstance(contestant, Peer):
            continue
        best = "; ".join(f"{binary(line.size)}: " + " / ".join(line.best(i, way).setting.name
                                                               for way in range(len(WAYS)))
                         for line in lines)
        tried = "; ".join(setting.name for setting in contestant.settings)
        sentences.append(f"{contestant.title}, best settings (out of place / in place): {best}.\n"
                         f"Tried: {tried}.")
    return sentences


def binary(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def times(best, shows_cpu):
    wall = microseconds(best.wall)
    return f"{wall} ({microseconds(best.cpu)})" if shows_cpu else wall


def microseconds(time):
    return f"{time:.2f}" if time < 10 else f"{time:.1f}" if time < 100 else f"{time:.0f}"
