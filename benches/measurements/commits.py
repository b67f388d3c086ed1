"""Whether the commits that the data names can be looked up."""

from __future__ import annotations

import subprocess

import data


def missing() -> list[str]:
    """Data whose commit is not in the repository, by names. Where there is no whole repository, or
    one of another history, nothing is."""
    named = {name: data.load(name).commit for name in data.names()}
    commits = {commit for commit in named.values() if commit not in ("", data.UNKNOWN)}
    if git("rev-parse", "--is-shallow-repository") != "false":
        return []
    unknown = {commit for commit in commits if not is_known(commit.rpartition("+")[2])}
    if unknown == commits:
        return []
    return [name for name, commit in named.items() if commit in unknown]


def is_known(commit: str) -> bool:
    return git("cat-file", "-t", commit) == "commit"


def git(*arguments: str) -> str:
    """What it says; nothing, where it fails or is not there."""
    try:
        ended = subprocess.run(["git", *arguments], capture_output=True, text=True)
    except OSError:
        return ""
    return ended.stdout.strip()
