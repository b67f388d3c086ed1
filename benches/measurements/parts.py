"""The parts of documents that show a table.

A part stands between `<!-- begin: NAME WHICH -->` and `<!-- end -->`. NAME is a data file; WHICH
may have `table=N` (all, if absent), `columns=N,N`, `without=HEAD,HEAD` (columns that the table may
lack), `rows=FIRST CELL,FIRST CELL` and `with=about`, which adds how it was measured.
`<!-- begin: ratios -->` is the table of collectives beside the best peer,
`<!-- begin: how-fast -->` that of all_reduce beside all others.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import data
import markdown
from data import Grid, Measured

PART = re.compile(r"(<!-- begin: ([^>]+?) -->\n).*?(<!-- end -->)", re.S)
# A line that is meant as the mark of a part.
MARK = re.compile(r"<!--\s*(begin|end)", re.I)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "alltoall")
# A machine may have no Open MPI 5.
PEERS = ("Open MPI", "Open MPI 5", "MPICH")
BESIDE = (
    ("host memory: Open MPI, MPICH", "host/all_reduce-hot", PEERS, "spark-ccl"),
    ("the same, ours in memory of `comm.alloc`", "host/all_reduce-hot", PEERS,
     "spark-ccl, registered"),
    ("PyTorch on the CPU: gloo", "torch/one-host", ("gloo us",), "spark_ccl us"),
    ("two H100: NCCL", "gpu/kernels-beside-nccl", ("NCCL, graph", "NCCL symmetric, graph"),
     "engine, graph"),
)
SIZES_OF_ALL = ("8 B", "16 MiB", "128 MiB")
RATIO_SIZES = ("64 B", "4 KiB", "64 KiB", "1 MiB", "16 MiB", "128 MiB")


def filled(text: str, document: Path) -> str:
    """The text, with its parts filled from the data."""
    marks = [mark.lower() for mark in MARK.findall(text)]
    if marks != ["begin", "end"] * len(PART.findall(text)):
        raise SystemExit(f"{document}: not every mark is of a part: each part needs a line "
                         "`<!-- begin: NAME -->` and, before the next part, `<!-- end -->`")
    return PART.sub(lambda found: part(found, document), text)


def link(measured: Measured, folder: str, page_at: str = "") -> str:
    return f"[{measured.title}]({page_at}{folder}.md#{markdown.anchor(measured.title)})"


def part(found: re.Match[str], document: Path) -> str:
    begin, words, end = found.groups()
    name, _, which = words.partition(" ")
    try:
        special = {"ratios": ratios, "how-fast": how_fast}
        shown = special[name]() if name in special else chosen(name, which, document)
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise SystemExit(f"{document}: <!-- begin: {words} -->: {error!r}") from error
    return f"{begin}{shown}\n{end}"


def chosen(name: str, which: str, document: Path) -> str:
    """The tables that a part asks for, and their origins."""
    options = dict(word.split("=", 1) for word in re.findall(r"\w+=[^=]+(?= \w+=|$)", which))
    measured = data.load(name)
    tables = measured.tables
    if "table" in options:
        tables = [replace(tables[int(options["table"]) - 1], title="")]
    texts = [text for table in tables for text in markdown.titled(narrowed(table, options))]
    folder = os.path.relpath(data.FOLDER, document.parent)
    where = link(measured, name.split("/")[0], f"{folder}/")
    source = markdown.wrapped(f"From {where}: {short(measured)}.")
    about = map(markdown.wrapped, measured.about) if options.get("with") == "about" else []
    return "\n\n".join([*about, *texts, source])


def short(measured: Measured) -> str:
    """The origin, with only the first words of the machine."""
    return replace(measured, machine=measured.machine.split(";")[0]).origin()


def narrowed(table: Grid, options: dict[str, str]) -> Grid:
    """Only the requested columns and rows, which must exist."""
    rows = table.rows
    if "rows" in options:
        by_first = {row[0]: row for row in reversed(rows)}
        rows = [by_first[first] for first in options["rows"].split(",")]
    columns = list(range(len(table.heads)))
    if "columns" in options:
        columns = [int(number) - 1 for number in options["columns"].split(",")]
    if "without" in options:
        without = options["without"].split(",")
        columns = [column for column in columns if table.heads[column] not in without]
    return Grid([table.heads[column] for column in columns],
                [[row[column] for column in columns] for row in rows], table.title)


def ratios() -> str:
    """The ratios of each collective, out of place and hot, beside the best peer."""
    rows, origins = [], []
    for collective in COLLECTIVES:
        measured = data.load(f"host/{collective}-hot")
        table = measured.tables[0]
        origins.append(short(replace(measured, load="")))
        of_size = dict(zip(table.column("bytes"), table.column("ratio")))
        rows.append([collective, *(of_size[size] for size in RATIO_SIZES)])
    origin = markdown.wrapped(f"{'; '.join(dict.fromkeys(origins))}.")
    return f"{markdown.grid(Grid(['collective', *RATIO_SIZES], rows))}\n\n{origin}"


def how_fast() -> str:
    """The times of all_reduce: the best of the others and ours, in microseconds."""
    rows = []
    for who, name, theirs, ours in BESIDE:
        measured = data.load(name)
        table = measured.tables[0]
        of_size = {}
        for row in table.rows:
            # The first of the columns with the same head.
            cells = dict(reversed(list(zip(table.heads, row))))
            if cells.get("call", "all_reduce") == "all_reduce":
                best = min((cells[other] for other in theirs if other in cells), key=data.number)
                of_size[cells["bytes"]] = f"{best}, {cells[ours]}"
        cells = [of_size[size] for size in SIZES_OF_ALL]
        rows.append([who, *cells, measured.date, measured.commit.removeprefix("0.1.0+")])
    heads = ["best of the others, ours (us)", *SIZES_OF_ALL, "date", "commit"]
    return markdown.grid(Grid(heads, rows))
