"""Makes tables for people."""

import datetime

import data
import machine
import markdown
from programs import Floor, Ours, Peer
from tables import LARGE, LARGE_ROUNDS, SHARE_FROM

WAYS = ("out of place", "in place")


def measured(table, lines, rounds, options, load):
    """The results of a table. The load average was taken before its first run."""
    large = f" ({LARGE_ROUNDS} from 128 MiB on)" if max(table.sizes) > LARGE else ""
    return data.Measured(
        table.title, "benches/peers.sh", datetime.date.today().isoformat(),
        machine.version(options.spark_perf), machine.describe(options.programs), f"{load:.2f}",
        [f"Median of {rounds} rounds{large}."],
        [grid(table, lines, way, name.capitalize()) for way, name in enumerate(WAYS)],
        settings(table, lines))


def shown(result):
    """Prints the same."""
    tables = [f"**{one.title}**\n\n{markdown.grid(one)}" for one in result.tables]
    return "\n\n".join([f"### {result.title}", result.origin(), *result.about, *tables,
                        *result.notes])


def grid(table, lines, way, title):
    rows = [row(table, line, way) for line in lines]
    return data.Grid([head for head, _ in rows[0]], [[cell for _, cell in row] for row in rows],
                     title)


def row(table, line, way):
    """Pairs of the column's head and the cell; times in microseconds."""
    bests = [line.best(i, way) for i in range(len(table.programs))]
    by_title = {program.title: best for program, best in zip(table.programs, bests)}
    peers = [best for program, best in zip(table.programs, bests)
             if isinstance(program, Peer)]
    # Without peers, the others are compared with the first.
    rival = min(peers or bests[:1], key=lambda best: best.wall)
    cells = [("bytes", binary(line.size))]
    for program, best in zip(table.programs, bests):
        shows_cpu = table.shows_cpu and not isinstance(program, Floor)
        cells.append((program.title, times(best, shows_cpu)))
        if isinstance(program, Ours) and best is not rival:
            cells.append(("ratio", f"{rival.wall / best.wall:.2f}"))
            if program.floor:
                cells.append(("share of floor",
                              share(by_title[program.floor], best, line.size)))
    cells.append(("spread", f"{100 * max(best.spread for best in bests):.0f} %"))
    return cells + [("line", f"{line.trip:.2f}")]


def share(floor, ours, size):
    return f"{100 * floor.wall / ours.wall:.0f} %" if size >= SHARE_FROM else ""


def settings(table, lines):
    """Lists the best setting of each peer, and the others that were tried."""
    sentences = []
    for i, program in enumerate(table.programs):
        if not isinstance(program, Peer):
            continue
        best = "; ".join(f"{binary(line.size)}: " + " / ".join(line.best(i, way).setting.name
                                                               for way in range(len(WAYS)))
                         for line in lines)
        tried = "; ".join(setting.name for setting in program.settings)
        sentences.append(f"{program.title}, best settings (out of place / in place): {best}.\n"
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
