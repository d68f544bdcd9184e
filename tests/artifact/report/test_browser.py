"""report.html in a real browser: no console message, no request but for the page itself, nothing wider than a phone.

Skips where Playwright's package or a Chromium is missing (apt-get install chromium).
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.report import page as pages
from onnxopt.artifact.report.facts import read_facts
from tests.support.browsers import Opened

pytestmark = pytest.mark.usefixtures("library")

DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 360, "height": 740}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
def test_quiet_and_within_the_screen(browser: Any, report: Path, viewport: dict[str, int], scheme: str) -> None:
    opened = Opened(browser, report, viewport, color_scheme=scheme)
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    dark = opened.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    assert opened.complaints == []
    assert opened.requests == [report.as_uri()]


def test_the_policy_lets_nothing_out(browser: Any, report: Path) -> None:
    """What a damaged or hostile page would try is refused by the page's own policy."""
    opened = Opened(browser, report, DESKTOP)
    opened.page.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x.png'}))")
    opened.page.wait_for_timeout(200)
    assert any("Content Security Policy" in text for text in opened.complaints)


def test_letters_of_the_plots_can_be_read_on_a_phone(browser: Any, report: Path) -> None:
    opened = Opened(browser, report, PHONE)
    heights = opened.page.evaluate(
        """[...document.querySelectorAll('svg text')].filter(t => t.checkVisibility())
           .map(t => t.getBoundingClientRect().height)"""
    )
    assert heights
    assert min(heights) >= 9


def test_numbers_of_an_axis_do_not_overlap(browser: Any, report: Path) -> None:
    """Sizes of a sweep may lie close to one another; those of the greater ones stay."""
    page = Opened(browser, report, PHONE).page
    plots = page.evaluate(
        """[...document.querySelectorAll('.pair svg')].map(svg => [...svg.querySelectorAll('text')]
           .map(t => [t.textContent, t.getBoundingClientRect()]).map(([text, b]) => [text, b.left, b.right, b.top]))"""
    )
    assert len(plots) == 4
    for texts in plots:
        rows: dict[int, list[tuple[float, float]]] = {}
        for _, left, right, top in texts:
            rows.setdefault(round(top), []).append((left, right))
        for row in rows.values():
            assert all(right <= left for (_, right), (left, _) in itertools.pairwise(sorted(row)))
    assert "1,000,000" in [text for text, *_ in plots[0]] and "96" not in [text for text, *_ in plots[0]]


def test_only_what_is_too_wide_takes_the_tab_key(browser: Any, report: Path) -> None:
    for viewport, some in ((DESKTOP, False), (PHONE, True)):
        page = Opened(browser, report, viewport).page
        page.locator("#numerics").scroll_into_view_if_needed()
        page.wait_for_timeout(200)
        found = page.evaluate("[...document.querySelectorAll('#numerics .scroll')].map(d => d.tabIndex)")
        assert found == ([0] if some else [-1])


def test_keyboard_alone_unfolds_a_kernel(browser: Any, report: Path) -> None:
    page = Opened(browser, report, DESKTOP).page
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('details.kernel > summary')"):
            break
    else:
        pytest.fail("no kernel was reached in 40 steps")
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('details.kernel').open")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_a_link_to_a_kernel_unfolds_it(browser: Any, report: Path) -> None:
    name = manifests.load(report.parent).kernels[1].name
    page = browser.new_page()
    page.goto(f"{report.as_uri()}#{name}")
    assert page.evaluate("[...document.querySelectorAll('details.kernel')].filter(d => d.open).map(d => d.id)") == [
        name
    ]


@pytest.fixture(scope="module")
def thousand(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an artifact that says it has a thousand kernels."""
    manifest = manifests.load(report.parent)
    facts = read_facts(report.parent, manifest)
    kernel = manifest.kernels[0]
    names = [f"{kernel.name}_{k}" for k in range(1000)]
    source = facts.sources[kernel.name]
    manifest = manifest.model_copy(update={"kernels": tuple(kernel.model_copy(update={"name": n}) for n in names)})
    facts = dataclasses.replace(
        facts,
        sources={n: source.replace(kernel.name, n) for n in names},
        costs=dict.fromkeys(names, facts.costs[kernel.name]),
    )
    path = tmp_path_factory.mktemp("thousand") / "report.html"
    path.write_text(pages.render(report.parent, manifest, facts), "utf-8")
    return path


def test_a_thousand_kernels_load_and_filter_fast(browser: Any, thousand: Path) -> None:
    """Bounds are generous: the machine may be shared. Alone it takes a tenth of them."""
    assert thousand.stat().st_size < 8e6
    started = time.perf_counter()
    opened = Opened(browser, thousand, PHONE)
    assert opened.page.locator("details.kernel").count() == 1000
    assert time.perf_counter() - started < 15
    page = opened.page
    page.get_by_role("searchbox").first.fill("_77")
    shown = page.evaluate("[...document.querySelectorAll('details.kernel')].filter(d => !d.hidden).length")
    assert shown == 11  # 77 and 770 to 779
    assert page.locator(".find output").first.text_content() == "11 of 1000"
    page.get_by_role("button", name="Unfold all").first.click()
    assert page.evaluate("[...document.querySelectorAll('details.kernel')].filter(d => d.open).length") == 11
    page.get_by_role("searchbox").first.fill("")
    started = time.perf_counter()
    page.get_by_role("button", name="Fold all").first.click()
    page.get_by_role("button", name="Unfold all").first.click()
    assert page.evaluate("[...document.querySelectorAll('details.kernel')].filter(d => d.open).length") == 1000
    assert time.perf_counter() - started < 15
    assert opened.complaints == []


def test_a_fused_call_opens_beside_its_lanes(browser: Any, report: Path) -> None:
    page = Opened(browser, report, PHONE).page
    box = page.locator("#graph-after details.box").first
    assert box.locator("ol").is_hidden()
    page.get_by_role("button", name="Open all boxes").click()
    box.scroll_into_view_if_needed()
    box.locator("ol").wait_for(state="visible")
    page.get_by_role("button", name="Close all boxes").click()
    box.locator("summary").click()
    sizes = """li => {
      const [row, rail, rest, head] = [li, ...li.querySelectorAll(":scope > svg"), li.querySelector("summary")]
        .map((element) => element.getBoundingClientRect());
      return [rest.top - rail.bottom, rest.bottom - row.bottom, rest.width - rail.width, head.left - rest.right];
    }"""
    below, end, width, beside = page.locator("#graph-after li.fused").first.evaluate(sizes)
    assert (below, end, width) == pytest.approx((0, 0, 0), abs=1.5)
    assert beside >= 0
