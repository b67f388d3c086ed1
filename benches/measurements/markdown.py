"""Converts tables to and from Markdown."""

from __future__ import annotations

import re
import textwrap

from data import Grid


def grid(table: Grid) -> str:
    """Aligns columns to the right if at least half of the cells are numbers."""
    columns = list(zip(*table.rows))
    aligned = ["---:" if is_numeric(column) else "---" for column in columns]
    return "\n".join("| " + " | ".join(row) + " |" for row in [table.heads, aligned, *table.rows])


def titled(table: Grid) -> list[str]:
    return [*([f"**{table.title}**"] if table.title else []), grid(table)]


def is_numeric(column: tuple[str, ...]) -> bool:
    filled = [cell for cell in column if cell]
    return 2 * sum(bool(re.match(r"[-+(]?\d", cell)) for cell in filled) >= max(len(filled), 1)


def parse(text: str) -> tuple[list[str], list[Grid], list[str]]:
    """The paragraphs before the first table, the tables, and the paragraphs after the first. A
    paragraph in bold right before a table, or a heading, is the table's title."""
    before: list[str] = []
    after: list[str] = []
    tables: list[Grid] = []
    title = ""
    for part in (part.strip() for part in re.split(r"\n\s*\n", text)):
        lines = part.split("\n")
        if title and not lines[0].startswith("|"):
            (after if tables else before).append(title)
            title = ""
        if lines[0].startswith("|"):
            heads, _, *rows = ([cell.strip() for cell in line.strip().strip("|").split("|")]
                               for line in lines)
            tables.append(Grid(heads, rows, title.strip("*# ")))
            title = ""
        elif len(lines) == 1 and (part.startswith("#") or re.fullmatch(r"\*\*[^*]+\*\*", part)):
            title = part
        elif part:
            (after if tables else before).append("\n".join(line.strip() for line in lines))
    return before, tables, after + ([title] if title else [])


def wrapped(text: str) -> str:
    """A paragraph or a list, whose items are a line each, in lines of 100 columns."""
    return "\n".join(
        textwrap.fill(line, 100, subsequent_indent="  " if line.startswith("- ") else "",
                      break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n"))


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")
