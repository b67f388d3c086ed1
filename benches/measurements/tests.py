"""python3 -B benches/measurements/tests.py"""

from __future__ import annotations

import os
import unittest
from pathlib import Path

import pages
import parts

os.chdir(Path(__file__).resolve().parents[2])


class Marks(unittest.TestCase):
    TEXT = ("# Title\n\n<!-- begin: ratios -->\nold\n<!-- end -->\n\n## Between\n\n"
            "<!-- begin: how-fast -->\nold\n<!-- end -->\n")

    def test_what_stands_outside_is_kept(self) -> None:
        filled = parts.filled(self.TEXT, Path("a.md"))
        self.assertNotIn("old", filled)
        self.assertIn("<!-- end -->\n\n## Between\n\n<!-- begin: how-fast -->\n", filled)

    def test_a_broken_mark_is_an_error(self) -> None:
        for mark in ("<!-- begin: ratios -->\n", "<!-- begin: how-fast -->\n", "<!-- end -->\n"):
            places = [at for at in range(len(self.TEXT)) if self.TEXT.startswith(mark, at)]
            for at in places:
                for broken in ("", mark.replace("- ", "-"), mark.replace(": ", ":"),
                               mark.upper(), mark.replace(" -->", "")):
                    text = self.TEXT[:at] + broken + self.TEXT[at + len(mark):]
                    if text != self.TEXT:
                        with self.subTest(text=text), self.assertRaisesRegex(SystemExit, "a.md"):
                            parts.filled(text, Path("a.md"))

    def test_all_documents_are_looked_at(self) -> None:
        found = {str(document) for document in pages.documents()}
        expected = {"README.md", "benches/README.md", "docs/tutorial/1-first-all-reduce.md",
                    "src/host/README.md", "crates/sched/README.md"}
        self.assertLessEqual(expected, found)
        self.assertNotIn("docs/measurements/host.md", found)


if __name__ == "__main__":
    unittest.main()
