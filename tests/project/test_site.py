"""The documentation's site: what its build refuses. `make check` builds it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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
    (tmp_path / "docs" / "README.md").write_text("[code](../program.py)\n\n```\n[a](b.md)\n```\n")
    (tmp_path / "program.py").write_text("")
    with pytest.raises(SystemExit, match=r"link\.md, which is no file of the tree"):
        stage.stage()
    (tmp_path / "link.md").write_text("")
    stage.stage()
    staged = {str(path.relative_to(stage.PAGES)) for path in stage.PAGES.rglob("*") if path.is_file()}
    assert staged == {"README.md", "docs/README.md", "program.py", "link.md"}
