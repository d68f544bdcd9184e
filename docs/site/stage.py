"""Copies the pages of the site, and every file that they link to, into build/docs/pages: python docs/site/stage.py.

The copies keep their places in the tree, so a link works on a code host and in the site alike, and MkDocs checks it.
Two pages move, and links to them follow: docs/site/front.md is the site's front page, and README.md is its overview. A
link to a file that is no page leads to the file itself, as the site serves it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "build" / "docs" / "pages"
_MOVED = {"docs/site/front.md": "index.md", "README.md": "overview.md"}
_LINK = re.compile(r"(?P<code>^```.*?^```|`[^`\n]+`)|(?<=\]\()(?![a-z]+:)(?P<path>[^)\s#]+)", re.S | re.M)


def linked(page: Path) -> set[Path]:
    """The files that a page links to, or shows as images."""
    found = (link["path"] for link in _LINK.finditer(page.read_text("utf-8")))
    return {(page.parent / path).resolve() for path in found if path}


def staged(path: Path) -> Path:
    """Where the site has a file of the tree."""
    place = path.relative_to(ROOT).as_posix()
    return PAGES / _MOVED.get(place, place)


def laid_out(page: Path) -> str:
    """The page's text, with links to where the site has the files."""

    def moved(link: re.Match[str]) -> str:
        if link["code"]:
            return link[0]
        return os.path.relpath(staged((page.parent / link["path"]).resolve()), staged(page).parent)

    return _LINK.sub(moved, page.read_text("utf-8"))


def stage() -> None:
    """Write the folder of pages anew. Exits with a message where a link leads nowhere or out of the tree."""
    shutil.rmtree(PAGES, ignore_errors=True)
    waiting = {ROOT / "README.md", *(ROOT / "docs" / "site").glob("*.css"), *(ROOT / "docs").rglob("*.md")}
    done: set[Path] = set()
    pages: list[Path] = []
    while waiting:
        path = waiting.pop()
        if not path.is_file() or not path.is_relative_to(ROOT):
            sys.exit(f"a page links to {path}, which is no file of the tree; link to its README.md, or mend the link")
        done.add(path)
        staged(path).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copyfile(path, staged(path))
            continue
        waiting |= linked(path) - done
        pages.append(path)
    for page in pages:
        staged(page).write_text(laid_out(page), "utf-8")


if __name__ == "__main__":
    stage()
