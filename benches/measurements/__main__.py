"""Keeps docs/measurements: data that scripts measure, and the pages that show it.

  python3 -B benches/measurements           writes all pages, and the tables in other documents
  python3 -B benches/measurements --check   fails if a page or picture does not match the data
  python3 -B benches/measurements --plots   draws the pictures, too; needs matplotlib 3.6
  SCRIPT | python3 -B benches/measurements --take FOLDER/NAME --title TEXT --command TEXT ...
                                            makes data of the tables that a script prints
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from pathlib import Path

import commits
import data
import markdown
import pages
import pictures

os.chdir(Path(__file__).resolve().parents[2])


def main() -> int:
    options = arguments()
    if options.take:
        take(options)
    made = pages.all_pages()
    stale = [file for file, text in made.items() if read(file) != text]
    if options.check:
        return complain(stale)
    for file in stale:
        file.write_text(made[file], encoding="utf-8")
    if options.plots:
        pictures.draw()
    return 0


def complain(stale: list[Path]) -> int:
    """The exit code."""
    for file in stale:
        print(f"{file} does not match the data: run python3 -B benches/measurements",
              file=sys.stderr)
    drawn = pictures.stale()
    for picture in drawn:
        print(f"{picture} does not match the data: run python3 -B benches/measurements --plots",
              file=sys.stderr)
    missing = commits.missing()
    for name in missing:
        print(f"{data.path(name)}: its commit is not in the repository: write {data.UNKNOWN!r}",
              file=sys.stderr)
    return 1 if stale or drawn or missing else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benches/measurements", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--plots", action="store_true")
    parser.add_argument("--take", metavar="FOLDER/NAME")
    parser.add_argument("--title", default="", help="of what is taken; a new table needs one")
    parser.add_argument("--command", default="", help="by which it was measured")
    parser.add_argument("--machine", default="", help="in words")
    parser.add_argument("--load", default="", help="load average before")
    parser.add_argument("--commit", default="", help="of what was measured (HEAD)")
    parser.add_argument("--date", default="", metavar="YYYY-MM-DD", help="(today)")
    return parser.parse_args()


def take(options: argparse.Namespace) -> None:
    """Takes tables from standard input; changes nothing if they do not fit the documents."""
    try:
        before, tables, after = markdown.parse(sys.stdin.read())
    except ValueError as error:
        raise SystemExit(f"standard input: {error}") from error
    if not tables:
        raise SystemExit("there is no table on standard input")
    file = data.path(options.take)
    is_new = not file.exists()
    old = data.Measured("", about=before, notes=after) if is_new else data.load(options.take)
    title = options.title or old.title
    if not title:
        raise SystemExit(f"{file} is new: --take needs --title")
    replace(options.take, data.Measured(
        title, options.command or old.command,
        options.date or datetime.date.today().isoformat(), options.commit or head(),
        options.machine or old.machine, options.load, old.about, tables, old.notes))
    if not is_new:
        print(f"{file} keeps its `about` and `notes`: look whether they are still true. Printed "
              "beside the tables was:", *before, *after, sep="\n", file=sys.stderr)


def replace(name: str, measured: data.Measured) -> None:
    """Saves, and restores the old data if pages or pictures cannot be made from the new."""
    file = data.path(name)
    old = file.read_bytes() if file.exists() else None
    data.save(name, measured)
    try:
        pages.all_pages()
        pictures.stale()
    except BaseException:
        file.unlink()
        if old is not None:
            file.write_bytes(old)
        raise


def head() -> str:
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


sys.exit(main())
