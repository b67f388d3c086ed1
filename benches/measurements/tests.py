"""python3 -B benches/measurements/tests.py"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import pages
import parts

os.chdir(Path(__file__).resolve().parents[2])
# Not of a repository in a hook of which this may run, and without a user's settings.
ELSEWHERE = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
ELSEWHERE["GIT_CONFIG_GLOBAL"] = os.devnull


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


class Mistakes(unittest.TestCase):
    """Tests in a copy of all files that the program reads."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for file in [*pages.documents(), *Path("docs").glob("**/*"),
                     *Path("benches/measurements").glob("*.py")]:
            if file.is_file():
                (self.root / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, self.root / file)

    def run_program(self, *arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-B", str(self.root / "benches/measurements"), *arguments]
        return subprocess.run(program, input=said, capture_output=True, text=True, env=ELSEWHERE)

    def refused(self, *arguments: str, said: str = "") -> str:
        """The program's message; a traceback is none."""
        ended = self.run_program(*arguments, said=said)
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertNotIn("Traceback", ended.stderr)
        return ended.stderr

    def change(self, file: str, old: str, new: str) -> None:
        path = self.root / file
        text = path.read_text(encoding="utf-8")
        self.assertIn(old, text)
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    def test_a_number_that_the_data_does_not_have(self) -> None:
        self.change("docs/performance.md", "| 8 B | ", "| 8 B | 9")
        self.assertIn("docs/performance.md", self.refused("--check"))

    def test_a_picture_that_somebody_changed(self) -> None:
        self.change("docs/tcp.svg", "MPICH", "mpich")
        said = self.refused("--check")
        self.assertIn("docs/tcp.svg does not match the data", said)
        self.assertIn("--plots", said)

    def test_a_row_that_is_not_there(self) -> None:
        self.change("docs/performance.md", "rows=8 B,", "rows=9 B,")
        self.assertIn("9 B", self.refused("--check"))

    def test_data_that_is_none(self) -> None:
        file = "docs/measurements/host/tcp.json"
        for old, new in (('"date"', '"day"'), ('"tables"', '"grids"'), ("[\"8 B\", ", "["),
                         ("{", "")):
            kept = (self.root / file).read_bytes()
            self.change(file, old, new)
            with self.subTest(new=new):
                self.assertIn(file, self.refused("--check"))
            (self.root / file).write_bytes(kept)

    @unittest.skipUnless(shutil.which("git"), "needs git")
    def test_a_commit_that_is_not_there(self) -> None:
        def git(*arguments: str) -> str:
            who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
            return subprocess.run(["git", *who, *arguments], cwd=self.root, check=True,
                                  capture_output=True, text=True, env=ELSEWHERE).stdout.strip()

        git("init", "--quiet")
        self.assertEqual(self.run_program("--check").returncode, 0, "another history is no mistake")
        git("commit", "--quiet", "--allow-empty", "--message", "x")
        self.change("docs/measurements/host/gloo.json", "0.1.0+226f121",
                    f"0.1.0+{git('rev-parse', 'HEAD')}")
        self.run_program()
        said = self.refused("--check")
        self.assertIn("host/tcp.json: its commit", said)
        self.assertNotIn("gloo.json", said)
        self.assertNotIn("kernels-beside-nccl.json", said)

    def test_tables_that_documents_cannot_show_are_not_taken(self) -> None:
        file = self.root / "docs/measurements/torch/one-host.json"
        kept = file.read_bytes()
        for table, why in (("| call | us |\n|---|---|\n| x | 1 |", "README.md"),
                           ("| call | us |\n|---|---|\n| x |", "1 cells under 2 heads"),
                           ("nothing", "no table")):
            with self.subTest(table=table):
                said = self.refused("--take", "torch/one-host", "--commit", "x", said=table)
                self.assertIn(why, said)
                self.assertEqual(file.read_bytes(), kept)

    def test_what_is_taken_again_keeps_its_texts(self) -> None:
        file = self.root / "docs/measurements/host/rails.json"
        old = file.read_text(encoding="utf-8")
        table = "| rails | ms |\n|---|---|\n| 1 | 700 |"
        taken = self.run_program("--take", "host/rails", "--commit", "x", said=table)
        self.assertEqual(taken.returncode, 0, taken.stderr)
        new = file.read_text(encoding="utf-8")
        self.assertIn('["1", "700"]', new)
        for key in ("title", "about", "command"):
            line = next(line for line in old.split("\n") if line.startswith(f' "{key}"'))
            self.assertIn(line, new)

    def test_new_tables_need_a_title(self) -> None:
        table = "| a | b |\n|---|---|\n| 1 | 2 |"
        said = self.refused("--take", "host/new", "--commit", "x", said=table)
        self.assertIn("--title", said)


if __name__ == "__main__":
    unittest.main()
