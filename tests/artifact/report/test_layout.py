"""The layout of report.html in a real browser: on a desktop, a tablet and a phone, in light and dark, and in print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import onnxopt
from tests.support import real_models
from tests.support.browsers import BROKEN_NUMBERS, OUTSIDE, OVERLAPS, Opened

pytestmark = pytest.mark.usefixtures("library")

WIDTHS, HEIGHT = (1400, 820, 390), 900
PAGES = 12  # of a printed report


def opened(browser: Any, path: Path, width: int, **options: Any) -> Any:
    return Opened(browser, path, {"width": width, "height": HEIGHT}, **options).page


def complaints(page: Any, width: int) -> list[str]:
    """What is wrong with the page as it is shown now."""
    # Rows of a drawing are laid out when they are near the view; here they all are.
    page.evaluate("document.querySelectorAll('ol.graph > li').forEach(li => li.style.contentVisibility = 'visible')")
    wide = page.evaluate("document.documentElement.scrollWidth")
    found = [f"{wide} pixels wide"] if wide > width else []
    for name, question in (("outside", OUTSIDE), ("overlap", OVERLAPS), ("broken number", BROKEN_NUMBERS)):
        found += [f"{name}: {text}" for text in page.evaluate(question)]
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows_overlaps_or_breaks(browser: Any, report: Path, width: int, scheme: str) -> None:
    page = opened(browser, report, width, color_scheme=scheme)
    assert complaints(page, width) == []
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert complaints(page, width) == []


def test_the_questions_find_what_is_wrong(browser: Any) -> None:
    page = browser.new_context(viewport={"width": 390, "height": HEIGHT}).new_page()
    page.set_content(
        "<p>a</p><p style='margin-top:-2.2rem'>over</p><p style='width:2rem;overflow-wrap:anywhere'>1234567</p>"
        "<p style='white-space:nowrap;width:9rem;margin-left:20rem'>right of the window it ends</p>"
        "<div style='overflow:auto;width:9rem'><p style='white-space:nowrap'>a long line scrolls in its box</p></div>"
    )
    found = complaints(page, 390)
    assert [text.split(":")[0] for text in found[1:]] == ["outside", "overlap", "broken number"]
    assert "scrolls" not in str(found)


@pytest.mark.parametrize(("width", "beside"), [(1400, True), (1100, True), (1099, False), (390, False)])
def test_the_index_stays_in_view(browser: Any, report: Path, width: int, beside: bool) -> None:
    """At the side from 1100 pixels on, else above; it names the section that is read."""
    page = opened(browser, report, width, reduced_motion="reduce")
    page.evaluate("document.getElementById('numerics').scrollIntoView()")
    page.locator("nav [aria-current][href='#numerics']").wait_for()
    nav, main = (page.locator(name).bounding_box() for name in ("nav", "main"))
    assert (nav["x"] + nav["width"] <= main["x"]) == beside
    assert 0 <= nav["y"] < 100
    links = page.evaluate("[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))")
    assert links


def test_bars_are_to_scale_and_follow_the_chosen_gpu(browser: Any, report: Path) -> None:
    page = opened(browser, report, 1400)
    bars = """[...document.querySelectorAll('.gpu:not([hidden]) .stack')].map(s =>
      [...s.querySelectorAll('rect')].reduce((sum, r) => sum + r.getBoundingClientRect().width, 0))"""
    before, after = page.evaluate(bars)
    numbers = [float(text) for text in page.locator(".gpu:not([hidden]) tfoot td").all_text_contents()]
    assert after / before == pytest.approx(numbers[1] / numbers[0], abs=0.02)
    shown = page.locator(".gpu:visible")
    first = page.locator("#gpu option").first.get_attribute("value")
    assert (shown.count(), shown.get_attribute("data-gpu")) == (1, first) == (1, "h200")  # it was measured there
    page.locator("#gpu").select_option("h100_pcie")
    assert (shown.count(), shown.get_attribute("data-gpu")) == (1, "h100_pcie")


def test_what_scrolls_says_so(browser: Any, report: Path) -> None:
    for width, hinted in ((1400, False), (390, True)):
        page = opened(browser, report, width)
        page.locator("#numerics").scroll_into_view_if_needed()
        page.wait_for_timeout(200)
        assert page.locator("#numerics .hint").first.is_visible() == hinted


def test_print_is_short_and_leaves_kernels_closed(browser: Any, artifact: Path) -> None:
    onnxopt.optimize(real_models.path("bert_tiny"), artifact, archs=("sm_90",))
    page = opened(browser, artifact / "report.html", 1400)
    pages = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))
    assert 2 <= pages <= PAGES
    page.emulate_media(media="print")
    assert page.locator("details.kernel[open], nav:visible, .find:visible, .drawn:visible").count() == 0
    assert page.locator(".stack:visible").count() == 2
