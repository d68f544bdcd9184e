"""Copies the pages of the site, and every file that they link to, into build/docs/pages: python docs/site/stage.py.

The copies keep their places in the tree, so a link works on a code host and in the site alike, and MkDocs checks it. A
link to a file that is no page leads to the file itself, as the site serves it.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "build" / "docs" / "pages"
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.S | re.M)
_LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")


def linked(page: Path) -> set[Path]:
    """The files that a page links to, or shows as images."""
    text = _CODE.sub("", page.read_text("utf-8"))
    links = {link for link in _LINK.findall(text) if not re.match(r"[a-z]+:", link)}
    return {(page.parent / link).resolve() for link in links}


def stage() -> None:
    """Write the folder of pages anew. Exits with a message where a link leads nowhere or out of the tree."""
    shutil.rmtree(PAGES, ignore_errors=True)
    waiting = {ROOT / "README.md", *(ROOT / "docs").glob("*.md")}
    done: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if not path.is_file() or not path.is_relative_to(ROOT):
            sys.exit(f"a page links to {path}, which is no file of the tree; link to its README.md, or mend the link")
        done.add(path)
        target = PAGES / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        if path.suffix == ".md":
            waiting |= linked(path) - done


if __name__ == "__main__":
    stage()
