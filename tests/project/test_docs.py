"""The documentation: references are what the code says, links lead somewhere, and C++ on a page compiles."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from onnxopt.tools.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md"), *ROOT.glob("examples/**/*.md")])

sys.path.insert(0, str(DOCS))
import generate  # noqa: E402  (docs/generate.py is a script beside the pages)


@pytest.mark.parametrize("name", ["cli", "python"])
def test_references_are_what_the_code_says(name: str) -> None:
    written = (DOCS / f"{name}.md").read_text("utf-8")
    assert written == getattr(generate, name)(), "run: python docs/generate.py"


def test_the_command_reference_has_every_command_and_option() -> None:
    text = (DOCS / "cli.md").read_text("utf-8")
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert f"## onnxopt {name}\n" in text
        shown = CliRunner().invoke(main, [name, "--help"]).stdout
        section = text.split(f"## onnxopt {name}\n")[1].split("\n## ")[0]
        for option in set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", shown, re.M)) - {"--help"}:
            assert option in section, f"onnxopt {name} {option}"
        assert command.help


def anchors(page: Path) -> set[str]:
    """Headings as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_is_reachable_from_the_index() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


def test_commands_on_the_pages_exist() -> None:
    """`onnxopt NAME --option` anywhere in the documentation names a command and options that it has."""
    for page in PAGES:
        for line in re.findall(r"onnxopt ([a-z-]+(?: [^`\n#|]*)?)", page.read_text("utf-8")):
            name, *words = line.split()
            command = main.get_command(click.Context(main), name)
            if command is None:
                continue
            known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
            for word in words:
                option = re.match(r"--[a-z-]+", word)
                assert option is None or option[0] in known, f"{page.name}: onnxopt {line}"


def test_the_cpp_of_the_page_compiles(tmp_path: Path) -> None:
    """Against the headers of the oldest ONNX Runtime that artifacts run on; nothing is linked or run."""
    headers = ROOT / "build" / "deps" / "include" / "onnxruntime"
    if not headers.is_dir():
        pytest.skip("no ONNX Runtime headers; run: make build")
    blocks = re.findall(r"```cpp\n(#include.*?)```", (DOCS / "deploy-cpp.md").read_text("utf-8"), re.S)
    assert len(blocks) == 2
    blocks[0] = re.sub(r"(#include.*?\n)\n(.*)", r"\1void Open() {\n\2}\n", blocks[0], flags=re.S)
    (tmp_path / "page.cc").write_text("\n".join(blocks))
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "-isystem", str(headers)]
    result = subprocess.run([*command, str(tmp_path / "page.cc")], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
