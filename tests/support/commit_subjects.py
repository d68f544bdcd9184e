"""The subjects of commits since the last release: `scope: verb object`, as CONTRIBUTING.md says.

    python -m tests.support.commit_subjects

A scope is a folder or a file of the tree, without its suffix, also in small letters: a room, a kind, docs, readme. Exit
code 1 names what is wrong.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "9041007d"  # the last commit in another form, while there is no release
LONGEST = 72
_FORM = re.compile(r"(?P<scope>[\w./-]+(, [\w./-]+)?): (?P<verb>[a-z][\w-]*) .*[^.\s]")
_OTHERS = {"make", "ci"}


def wrong(subject: str, scopes: set[str]) -> str:
    """What is wrong with a subject; "" where nothing is."""
    form = _FORM.fullmatch(subject)
    if form is None:
        return "is not `scope: verb object`, without a full stop"
    if len(subject) > LONGEST:
        return f"has {len(subject)} characters, {LONGEST} at most"
    unknown = [name for name in form["scope"].split(", ") if name not in scopes]
    return f"names {unknown[0]!r}, which is no folder or file of the tree" if unknown else ""


def scopes_of(paths: list[str]) -> set[str]:
    """The names that a scope may have: of folders, of files without their suffix, and paths of these."""
    parts = {Path(path).with_suffix("").parts for path in paths}
    every = {"/".join(names[k:end]) for names in parts for end in range(1, len(names) + 1) for k in range(end)}
    return every | {name.lower() for name in every} | _OTHERS  # README and Makefile are `readme` and `makefile`


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def findings() -> Iterator[str]:
    """A line for each commit whose subject is wrong. Nothing where this is no clone, or none of all commits."""
    try:
        tags = _git("tag", "--merged", "HEAD", "--sort=-creatordate", "--list", "v*").split()
        commits = _git("log", "--no-merges", "--format=%h %s", f"{tags[0] if tags else BEFORE}..HEAD").splitlines()
        scopes = scopes_of(_git("ls-files").splitlines())
    except (OSError, subprocess.CalledProcessError):
        print("subjects of commits: not checked, as this is no clone with the last release in it", file=sys.stderr)
        return
    for line in commits:
        name, _, subject = line.partition(" ")
        if problem := wrong(subject, scopes):
            yield f"{name}: {subject!r} {problem}"


if __name__ == "__main__":
    found = list(findings())
    print("\n".join(found), file=sys.stderr)
    sys.exit(bool(found))
