"""The documentation's site: what its build refuses, and its front page in a browser. `make check` builds it."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browsers import BROKEN_NUMBERS, OUTSIDE, OVERLAPS, Opened
from tests.support.browsers import browser as browser

ROOT = Path(__file__).resolve().parents[3]
CONFIGURATION = """
INHERIT: {inherited}
docs_dir: {folder}/pages
site_dir: {folder}/site
nav: [{{Here: here.md}}]
"""


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ("there.md#a-heading", None),
        ("there.md#no-heading", "does not contain an anchor '#no-heading'"),
        ("nowhere.md", "the target is not found"),
    ],
)
def test_a_link_that_leads_nowhere_fails(tmp_path: Path, link: str, complaint: str | None) -> None:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip('mkdocs-material is not installed; run: pip install -e ".[dev]"')
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "here.md").write_text(f"# Here\n\n[a link]({link})\n")
    (pages / "there.md").write_text("# There\n\n## A heading\n")
    configuration = tmp_path / "mkdocs.yml"
    configuration.write_text(CONFIGURATION.format(inherited=ROOT / "docs" / "site" / "mkdocs.yml", folder=tmp_path))
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", configuration]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == (1 if complaint else 0), done.stderr
    assert (complaint or "") in done.stderr


def test_staging_takes_what_pages_link_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    stage = __import__("stage")
    monkeypatch.setattr(stage, "ROOT", tmp_path)
    monkeypatch.setattr(stage, "PAGES", tmp_path / "build" / "pages")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "[docs](docs/README.md#here) [outside](https://example.org) [`more`](link.md) `[code](no.md)`\n"
    )
    (tmp_path / "docs" / "README.md").write_text(
        "[README](../README.md#here) [code](../program.py)\n\n```\n[a](b.md)\n```\n"
    )
    (tmp_path / "program.py").write_text("")
    with pytest.raises(SystemExit, match=r"link\.md, which is no file of the tree"):
        stage.stage()
    (tmp_path / "link.md").write_text("")
    stage.stage()
    staged = {str(path.relative_to(stage.PAGES)) for path in stage.PAGES.rglob("*") if path.is_file()}
    assert staged == {"overview.md", "docs/README.md", "program.py", "link.md"}
    assert "[README](../overview.md#here) [code](../program.py)" in (stage.PAGES / "docs/README.md").read_text("utf-8")
    assert "`[code](no.md)`" in (stage.PAGES / "overview.md").read_text("utf-8")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The whole site, built and served."""
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip('mkdocs-material is not installed; run: pip install -e ".[dev]"')
    folder = tmp_path_factory.mktemp("site")
    pages = f"import sys; sys.path.insert(0, '{ROOT}/docs/site'); import stage; from pathlib import Path\n"
    pages += f"stage.PAGES = Path('{folder}/pages'); stage.stage()"
    subprocess.run([sys.executable, "-c", pages], check=True)
    (folder / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT}/docs/site/mkdocs.yml\ndocs_dir: {folder}/pages\nsite_dir: {folder}/site\n"
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", folder / "mkdocs.yml"]
    environment = {**os.environ, "ONNXOPT_REPOSITORY": "https://example.org/onnxopt"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    handler = functools.partial(Quiet, directory=str(folder / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1400, 900), (820, 1100), (390, 800)])
def test_the_front_page(browser: Any, address: str, width: int, height: int, scheme: str) -> None:
    """Its chart has the scheme's colours; nothing overlaps, is cut off or comes from elsewhere."""
    opened = Opened(browser, f"{address}index.html", {"width": width, "height": height}, color_scheme=scheme)
    page = opened.page
    page.wait_for_load_state("networkidle")
    page.evaluate("document.querySelector('header').remove()")  # the theme's, with titles that are shown in turn
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERLAPS) == page.evaluate(OUTSIDE) == page.evaluate(BROKEN_NUMBERS) == []
    shown = page.evaluate(
        "[...document.querySelectorAll('.chart img')].filter(i => i.checkVisibility() && i.naturalWidth)"
        ".map(i => [i.src.split('/').pop(), i.getBoundingClientRect().width / i.naturalWidth])"
    )
    ((name, share),) = shown
    assert name == f"networks-{scheme}.svg#only-{scheme}"
    assert 13 * share >= 9  # pixels of the smallest letters
    commands = page.locator(".front pre code").first.inner_text()
    assert [line.split()[:2] for line in commands.splitlines()] == [
        ["pip", "install"],
        ["onnxopt", "optimize"],
        ["onnxopt", "bench"],
    ]
    assert opened.complaints == []
    assert all(request.startswith((address, "data:")) for request in opened.requests), opened.requests


def test_search_finds_a_page_and_the_header_links_to_the_source(browser: Any, address: str) -> None:
    page = Opened(browser, address, {"width": 1400, "height": 900}).page
    assert page.locator("header a[href='https://example.org/onnxopt']").count() == 1
    box = page.locator(".md-search__input[placeholder='Search']")  # "Initializing search" before the index is read
    box.click()
    box.press_sequentially("cuda graph", delay=20)
    result = page.locator(".md-search-result__link").first
    result.wait_for(timeout=10_000)
    assert result.get_attribute("href")
