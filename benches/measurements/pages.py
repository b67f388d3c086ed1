"""The pages of docs/measurements, and all documents that show parts of them."""

from __future__ import annotations

import re
from pathlib import Path

import data
import markdown
import parts
from data import Grid, Measured

PAGES = {
    "host": "Host memory",
    "gpu": "GPUs",
    "torch": "PyTorch",
    "rdma": "RDMA",
    "causes": "What bounds it",
    "predicted": "Predictions",
}
MADE = "<!-- Made by benches/measurements from the data beside it. Do not edit. -->"
EXPLAINED = "What columns mean, and how measurements are made: [benches](../../benches/README.md)."
# Names with these beginnings come first, in this order; the rest by name.
FIRST = (*(f"host/{collective}" for collective in parts.COLLECTIVES),
         "host/tcp", "host/crowded", "host/types")
# The folders of documents; those of the root are added.
FOLDERS = ("benches", "crates", "docs", "examples", "ffi", "python", "src", "tests")


def all_pages() -> dict[Path, str]:
    """The text that each page and document should have."""
    by_folder: dict[str, list[str]] = {}
    for name in sorted(data.names(), key=place):
        by_folder.setdefault(name.split("/")[0], []).append(name)
    unknown = by_folder.keys() - PAGES.keys()
    if unknown:
        raise SystemExit(f"{data.FOLDER}: no page for {sorted(unknown)}: name it in {__file__}")
    made = {data.FOLDER / "README.md": index(by_folder)}
    for folder, names in by_folder.items():
        made[data.FOLDER / f"{folder}.md"] = page(folder, names)
    for document in documents():
        made[document] = parts.filled(document.read_text(encoding="utf-8"), document)
    return made


def place(name: str) -> int:
    """The place of a table; those of the same place stay sorted."""
    return next((at for at, begin in enumerate(FIRST) if re.match(rf"{begin}\b", name)), len(FIRST))


def documents() -> list[Path]:
    """All documents that people write, without files that builds or programs leave."""
    found = [*Path().glob("*.md"), *(file for folder in FOLDERS
                                     for file in Path(folder).rglob("*.md"))]
    return sorted(file for file in found if data.FOLDER not in file.parents
                  and not any(part == "target" or part.startswith(".") for part in file.parts))


def index(by_folder: dict[str, list[str]]) -> str:
    rows = []
    for folder in PAGES:
        for name in by_folder.get(folder, []):
            measured = data.load(name)
            commit = measured.commit.removeprefix("0.1.0+")
            rows.append([parts.link(measured, folder), measured.date, commit, measured.command])
    pages = " · ".join(f"[{title}]({folder}.md)" for folder, title in PAGES.items()
                       if folder in by_folder)
    return "\n\n".join([
        MADE, "# Measurements",
        "All tables of this library, with the data from which they are made. "
        "[Performance](../performance.md) has what decides, and how to measure.",
        pages, markdown.grid(Grid(["table", "date", "commit", "measured by"], rows)),
    ]) + "\n"


def page(folder: str, names: list[str]) -> str:
    sections = [MADE, f"# Measurements: {PAGES[folder]}", EXPLAINED]
    for name in names:
        sections += section(name, data.load(name))
    return "\n\n".join(sections) + "\n"


def section(name: str, measured: Measured) -> list[str]:
    line = measured.origin()
    origin = [f"{line[0].upper()}{line[1:]}."] if line else []
    tables = [text for table in measured.tables for text in markdown.titled(table)]
    source = f"Data: [`{name}.json`]({name}.json)"
    said = map(markdown.wrapped, [*command(name, measured), *origin, *measured.about])
    return [f"## {measured.title}", *said, *tables, *map(markdown.wrapped, measured.notes), source]


def command(name: str, measured: Measured) -> list[str]:
    if not measured.command:
        return []
    verb = "Made" if name.startswith("predicted/") else "Measured"
    by_hand = measured.command == "by hand"
    return [f"{verb} by hand." if by_hand else f"{verb} by `{measured.command}`."]
