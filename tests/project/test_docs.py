"""The documentation: references are what the code says, links, paths, commands and modules exist, snippets compile."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import summaries
from benchmarks.support import claims, networks_chart
from onnxopt.tools.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FRONT = DOCS / "site" / "front.md"
FOLDERS = (
    "benchmarks",
    "cases",
    "cuda_kernels",
    "custom_ops",
    "docker",
    "docs",
    "examples",
    "models",
    "onnxopt",
    "tests",
)
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]
    + [page for name in set(FOLDERS) - {"docs"} for page in (ROOT / name).rglob("README.md")]
)
# Notes keep the names that modules had when something was measured, so only their links are tested.
NOTES = sorted(page for page in (ROOT / "benchmarks" / "notes").glob("*.md") if page.name != "README.md")
WRITTEN = [page for page in PAGES if page != DOCS / "python.md"]  # that one holds signatures and docstrings
BUILT = ("onnxopt/lib", "models/cache")  # folders that a fresh clone does not have

sys.path.insert(0, str(DOCS))
import generate  # noqa: E402  (docs/generate.py is a script beside the pages)


@pytest.mark.parametrize("name", ["artifact", "cli", "python", "tutorial", "costs", "rewrite-rules"])
def test_references_are_what_the_code_says(name: str) -> None:
    written = (DOCS / f"{name}.md").read_text("utf-8")
    assert written == getattr(generate, name.replace("-", "_"))(), "run: python docs/generate.py"


def test_the_front_page_and_the_pictures_are_what_the_result_files_say() -> None:
    images = generate.images()
    drawn = {path.name: path.read_text("utf-8") for path in (DOCS / "images").glob("*.svg")}
    assert drawn == images, "run: python docs/generate.py"
    assert FRONT.read_text("utf-8") == generate.front(), "run: python docs/generate.py"
    for scheme in ("light", "dark"):
        assert images[f"networks-{scheme}.svg"].count('<rect class="torch"') == 1 + len(networks_chart.networks())
    assert f"of {len(networks_chart.networks())} networks" in FRONT.read_text("utf-8")  # what readers hear


def test_the_command_reference_has_every_command_and_option() -> None:
    text = (DOCS / "cli.md").read_text("utf-8")
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert f"## onnxopt {name}\n" in text
        shown = CliRunner().invoke(main, [name, "--help"]).stdout
        section = text.split(f"## onnxopt {name}\n")[1].split("\n## ")[0]
        for option in set(re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", shown, re.M)) - {"--help"}:
            assert option in section, f"onnxopt {name} {option}"
        assert command.help


def anchors(page: Path) -> set[str]:
    """Headings as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor and target.suffix != ".svg":  # where the theme shows a picture in one scheme alone
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_is_reachable_from_the_index() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name
    recipes = (DOCS / "recipes" / "README.md").read_text("utf-8")
    site = (DOCS / "site" / "mkdocs.yml").read_text("utf-8")
    for page in (DOCS / "recipes").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in recipes, page.name
        assert f"docs/recipes/{page.name}\n" in site, page.name


def test_the_table_of_claims_is_what_the_result_files_say() -> None:
    """Every row names a benchmark of today, and every note is in the page's list."""
    text = claims.PAGE.read_text("utf-8")
    assert text == claims.page(text), "run: python -m benchmarks.support.claims"
    assert {claim.benchmark for claim in claims.CLAIMS} <= summaries().keys()
    assert all(f"({note.name})" in text for note in NOTES)


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
                option = re.match(r"--[a-z0-9-]+", word)
                assert option is None or option[0] in known, f"{page.name}: onnxopt {line}"


def code(page: Path) -> list[str]:
    """Every line of a page's fenced blocks, without its comment, and every inline code span."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)
    lines = [line.partition("  #")[0].strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    return [*lines, *(" ".join(span.split()) for span in spans)]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_code_on_the_pages_names_exists(page: Path) -> None:
    """The command behind `onnxopt`, the target behind `make`, the module behind `python -m`, and paths of the tree."""
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    for text in code(page):
        words = text.split()
        if match := re.match(r"onnxopt ([a-z][a-z-]*)", text):
            assert match[1] in COMMANDS, text
        if match := re.match(r"make ([a-z][a-z0-9-]*)", text):
            assert match[1] in targets, text
        if words[:3] == ["python", "-m", "pytest"]:
            assert all((ROOT / word).exists() for word in words[3:] if word.startswith("tests/")), text
        if words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]) is not None, text
            if words[2] == "benchmarks" and len(words) > 3 and words[3].islower():
                assert words[3] in summaries(), text
        is_path = re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w./-]*", text) and "NAME" not in text
        if is_path and page.name != "CHANGELOG.md":  # which names what has moved
            assert text.startswith(BUILT) or (ROOT / text).exists(), text


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_on_the_pages_parses(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.S | re.M):
        ast.parse(block)


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_use_the_fields_words_for_data_flow(page: Path) -> None:
    """Upstream and downstream, prologue and epilogue, before and after; code spans and links are left out."""
    text = re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", "", page.read_text("utf-8"), flags=re.S)
    words = re.findall(r"\bbehind\b|\bin front\b|\bahead\b(?! of time)|\bspelled out\b|\btakes? in\b", text, re.I)
    assert words == []


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert not [name for name in COMMANDS if f"`onnxopt {name}" not in text]


def _figures(name: str) -> dict[str, dict[str, Any]]:
    """Raw figures of a benchmark, of an H200."""
    path = ROOT / "benchmarks" / "results" / "models" / f"gpu_{name}_h200.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return found


def _cells(figures: Sequence[float | str | None]) -> list[str]:
    return [f"{ms:.2f}" if isinstance(ms, float) else "" for ms in figures]


def _compiled(figures: Mapping[str, float | str]) -> float | None:
    """torch.compile's mode reduce-overhead, in the better layout."""
    found = (figures.get(f"torch.compile {mode}") for mode in ("reduce-overhead", "channels_last"))
    return min((ms for ms in found if isinstance(ms, float)), default=None)


def test_the_comparison_shows_the_raw_figures() -> None:
    """Every figure of a model in a table of docs/compared.md is one that benchmarks/results has of that model."""
    names = {"BERT": "bert", "ViT": "vit", "Whisper": "whisperenc", "Llama": "llama"}
    networks = {"ResNet50": "resnet50", "ConvNeXt": "convnext"}
    raw = {name: _figures("peers")[key] for name, key in names.items()}
    raw |= {name: _figures("convolution_peers")[key] for name, key in networks.items()}
    columns = {
        "ORT": "ORT + CUDA graph",
        "transformers.optimizer": "ORT after transformers.optimizer",
        "ort_fusions": "ORT after ort_fusions",
        "onnxopt": "onnxopt",
    }
    text = (DOCS / "compared.md").read_text("utf-8")
    rows = 0
    for heading, body in re.findall(r"^\| model \|(.*)\|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M):
        titles = [title.strip() for title in heading.split("|")]
        for line in body.splitlines():
            name, *cells = (cell.strip(" *") for cell in line.strip("|").split("|"))
            figures = next(values for key, values in raw.items() if name.startswith(key))
            expected = [figures[columns[title]] if title in columns else _compiled(figures) for title in titles]
            assert cells == _cells(expected), name
            rows += 1
    assert rows == 10


def test_the_comparison_says_what_the_result_files_say() -> None:
    """Its sentences about more networks, and its table of optimizers of graphs."""
    text = " ".join((DOCS / "compared.md").read_text("utf-8").split())
    figures = claims.figures()
    count, least, most, mean = re.findall(
        r"[\d.]+", figures["the same beside the best of `torch.compile`, where it was timed"]
    )
    assert (
        f"{count} in float16 or float32 were timed on 2026-12-01: onnxopt was {least} to {most} times as fast as "
        f"torch.compile's best mode, {mean} in the geometric mean" in text
    )
    nearest = sorted(networks_chart.networks(None), key=lambda network: network.torch)[:3]
    named = [f"{network.name} ({network.torch:.2f})" for network in nearest]
    assert f"The nearest are {named[0]}, {named[1]} and {named[2]}." in text
    count, least, most, mean = re.findall(r"[\d.]+", figures["the same beside `torch.compile`, where it was timed"])
    assert f"Of {count} transformers on 2026-11-28, some were slower than with torch.compile: {least} to {most}" in text
    assert f"times as fast, {mean} in the geometric mean" in text
    rows = json.loads((claims.RESULTS / "cpu" / "optimizers.json").read_text("utf-8"))["rows"]["bert"]
    names = {
        "onnxopt, from loading to fused functions": "onnxopt, load to outline",
        "onnxopt, all of `optimize`, kernels compiled and verified": "onnxopt optimize, cold",
        "onnxsim 0.8": "onnxsim",
        "onnxslim 0.1": "onnxslim",
        "onnxscript.optimizer": "onnxscript.optimizer",
    }
    for name, key in names.items():
        assert f"| {name} | {rows[key]['seconds']:.1f} | {rows[key]['peak_of_model']:.1f} |" in text


def test_the_cpp_of_the_page_compiles(tmp_path: Path) -> None:
    """Against the headers of the oldest ONNX Runtime that artifacts run on; nothing is linked or run."""
    headers = ROOT / "build" / "deps" / "include" / "onnxruntime"
    if not headers.is_dir():
        pytest.skip("no ONNX Runtime headers; run: make build")
    blocks = re.findall(r"```cpp\n(#include.*?)```", (DOCS / "deploy.md").read_text("utf-8"), re.S)
    assert len(blocks) == 2
    (tmp_path / "page.cc").write_text("\n".join(blocks))
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "-isystem", str(headers)]
    command += ["-I", str(ROOT / "onnxopt" / "include")]
    result = subprocess.run([*command, str(tmp_path / "page.cc")], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
