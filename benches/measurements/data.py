"""Tables as data: docs/measurements/FOLDER/NAME.json, a file for each measurement."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path("docs/measurements")
# Replaces a commit that is not in the repository.
UNKNOWN = "an earlier build"
UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30}


@dataclass
class Grid:
    """A table; cells are texts, as a page shows them."""

    heads: list[str]
    rows: list[list[str]]
    title: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise ValueError(f"{len(row)} cells under {len(self.heads)} heads: {row}")

    def column(self, head: str, nth: int = 0) -> list[str]:
        """The cells of the nth column of this head."""
        columns = [number for number, other in enumerate(self.heads) if other == head]
        if nth >= len(columns):
            raise ValueError(f"there are {len(columns)} columns {head!r}")
        return [row[columns[nth]] for row in self.rows]


@dataclass
class Measured:
    """The tables of one measurement, its command, commit, machine, date and load. `about` stands
    before its tables, `notes` after them. Unknown fields are empty."""

    title: str
    command: str = ""
    date: str = ""
    commit: str = ""
    machine: str = ""
    load: str = ""
    about: list[str] = field(default_factory=list)
    tables: list[Grid] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def origin(self) -> str:
        """Where the figures come from, in one line."""
        load = self.load and f"load average before {self.load}"
        known = self.commit and f"spark-ccl {self.commit}"
        commit = f"{UNKNOWN} of spark-ccl" if self.commit == UNKNOWN else known
        return "; ".join(part for part in (self.date, commit, self.machine, load) if part)


def path(name: str) -> Path:
    return FOLDER / f"{name}.json"


def names() -> list[str]:
    """All files, by folder and name."""
    files = FOLDER.glob("*/*.json")
    return sorted(str(file.relative_to(FOLDER).with_suffix("")) for file in files)


def load(name: str) -> Measured:
    try:
        content = json.loads(path(name).read_text(encoding="utf-8"))
        content["tables"] = [Grid(**table) for table in content["tables"]]
        return Measured(**content)
    except (KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"{path(name)}: {error!r}") from error


def save(name: str, measured: Measured) -> None:
    """Formats a row on each line, so that a diff shows the changed ones."""
    path(name).parent.mkdir(parents=True, exist_ok=True)
    path(name).write_text(text(measured), encoding="utf-8")


def text(measured: Measured) -> str:
    def quoted(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    def listed(values: list[str], indent: str) -> str:
        inner = ",\n".join(f"{indent}  {value}" for value in values)
        return f"[\n{inner}\n{indent}]" if values else "[]"

    def grid(table: Grid) -> str:
        rows = listed([quoted(row) for row in table.rows], "   ")
        return (f'{{"title": {quoted(table.title)},\n   "heads": {quoted(table.heads)},\n'
                f'   "rows": {rows}}}')

    parts = []
    for key, value in vars(measured).items():
        if key == "tables":
            shown = listed([grid(table) for table in value], " ")
        elif isinstance(value, list):
            shown = listed([quoted(one) for one in value], " ")
        else:
            shown = quoted(value)
        parts.append(f' "{key}": {shown}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def size(cell: str) -> int:
    """The bytes in a text such as `64 KiB`."""
    number, unit = cell.split()
    return int(number) << UNITS[unit]


def number(cell: str) -> float:
    """The first number of a cell; whether thousands have commas does not matter."""
    found = re.match(r"[-+]?[\d,]*\.?\d+", cell)
    if not found:
        raise ValueError(f"{cell!r} does not begin with a number")
    return float(found[0].replace(",", ""))
