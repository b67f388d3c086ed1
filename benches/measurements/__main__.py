"""Keeps docs/measurements: data that scripts measure, and the pages that show it.

  python3 -B benches/measurements           writes all pages, and the tables in other documents
  python3 -B benches/measurements --check   fails where a page or a picture is not of the data
  python3 -B benches/measurements --plots   draws the pictures, too; needs matplotlib
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

import data
import markdown
import pages
import pictures

os.chdir(Path(__file__).resolve().parents[2])


def main() -> int:
    options = arguments()
    if options.take:
        take(options)
    if options.plots:
        pictures.draw()
    if options.check:
        stale = [str(file) for file, text in pages.all_pages().items() if read(file) != text]
        stale += pictures.stale()
        for file in stale:
            print(f"{file} is not of the data: run python3 -B benches/measurements --plots",
                  file=sys.stderr)
        return 1 if stale else 0
    for file, text in pages.all_pages().items():
        if read(file) != text:
            file.write_text(text, encoding="utf-8")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benches/measurements", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--plots", action="store_true")
    parser.add_argument("--take", metavar="FOLDER/NAME")
    parser.add_argument("--title", help="of what is taken; a new table needs one")
    parser.add_argument("--command", default="", help="by which it was measured")
    parser.add_argument("--machine", default="", help="in words")
    parser.add_argument("--load", default="", help="load average before")
    parser.add_argument("--commit", default="", help="of what was measured (HEAD)")
    parser.add_argument("--date", default="", metavar="YYYY-MM-DD", help="(today)")
    options = parser.parse_args()
    if options.take and not options.title:
        parser.error("--take needs --title")
    return options


def take(options: argparse.Namespace) -> None:
    """Tables from standard input."""
    before, tables, after = markdown.parse(sys.stdin.read())
    if not tables:
        raise SystemExit("there is no table on standard input")
    data.save(options.take, data.Measured(
        options.title, options.command, options.date or datetime.date.today().isoformat(),
        options.commit or head(), options.machine, options.load, before, tables, after))


def head() -> str:
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


sys.exit(main())
