"""Checks that the commits in the data exist."""

from __future__ import annotations

import subprocess

import data


def missing() -> list[str]:
    """Names of data with a commit that is not in the repository. Empty if the repository is
    shallow, missing, or has another history."""
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
    """The output of git; empty if it fails or is missing."""
    try:
        ended = subprocess.run(["git", *arguments], capture_output=True, text=True)
    except OSError:
        return ""
    return ended.stdout.strip()
