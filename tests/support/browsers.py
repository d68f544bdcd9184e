"""A Chromium that tests open pages in, and what a page says of its layout.

Tests skip where Playwright's package or a Chromium is missing (apt-get install chromium).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this system")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page, by its path or address, with everything that went over its console or its network."""

    def __init__(self, browser: Any, page: Path | str, viewport: dict[str, int], **options: Any):
        self.page = browser.new_context(viewport=viewport, **options).new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(page if isinstance(page, str) else page.as_uri())


# Every piece of text that can be seen: its words, and its boxes on the page without what scrolling parts hide.
_PIECES = """
const clips = new Map();
const clip = (element) => {
  if (!element || element === document.body) return [0, -1e9, 1e9, 1e9];
  if (!clips.has(element)) {
    let [left, top, right, bottom] = clip(element.parentElement);
    if (getComputedStyle(element).overflowX !== "visible") {
      const box = element.getBoundingClientRect();
      [left, top] = [Math.max(left, box.left), Math.max(top, box.top)];
      [right, bottom] = [Math.min(right, box.right), Math.min(bottom, box.bottom)];
    }
    clips.set(element, [left, top, right, bottom]);
  }
  return clips.get(element);
};
const boxes = (range, element) => {
  const [l, t, r, b] = clip(element);
  return [...range.getClientRects()]
    .map((x) => [Math.max(x.left, l), Math.max(x.top, t), Math.min(x.right, r), Math.min(x.bottom, b)])
    .filter((x) => x[2] - x[0] > 1 && x[3] - x[1] > 1);
};
const pieces = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.data.trim() || parent.closest("script, style, .skip, option, title")) continue;
  if (!parent.checkVisibility({ contentVisibilityAuto: true })) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  pieces.push({ node, parent, text: node.data.trim(), boxes: boxes(range, parent) });
}
"""

# Pairs of texts that lie on each other, by more than the leading of a line.
OVERLAPS = f"""() => {{ {_PIECES}
  const all = pieces.flatMap(({{ text, boxes }}) => boxes.map((box) => [text, box])).sort((a, b) => a[1][1] - b[1][1]);
  const found = [];
  all.forEach(([text, a], k) => {{
    for (let j = k + 1; j < all.length && all[j][1][1] < a[3] - 3; j++) {{
      const b = all[j][1];
      const wide = Math.min(a[2], b[2]) - Math.max(a[0], b[0]), high = Math.min(a[3], b[3]) - Math.max(a[1], b[1]);
      if (wide > 2 && high > 6) found.push(`${{text}} | ${{all[j][0]}}`);
    }}
  }});
  return found;
}}"""

# Texts that end right of the window.
OUTSIDE = f"""() => {{ {_PIECES}
  return pieces.filter(({{ boxes }}) => boxes.some((box) => box[2] > innerWidth + 1)).map(({{ text }}) => text);
}}"""

# Numbers of which a part stands on the next line; of code, only what is no number breaks.
BROKEN_NUMBERS = f"""() => {{ {_PIECES}
  const found = [];
  for (const {{ node, parent }} of pieces.filter(({{ parent }}) => !parent.closest("code, pre"))) {{
    for (const match of node.data.matchAll(/[\\d][\\d.,]*\\d(e[+-]?\\d+)?/g)) {{
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const tops = [...range.getClientRects()].map((box) => box.top);
      if (Math.max(...tops) - Math.min(...tops) > 4) found.push(`${{match[0]}} of ${{node.data.trim()}}`);
    }}
  }}
  return found;
}}"""
