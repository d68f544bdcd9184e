"""Commands on the pages of docs/ run as they are printed, in the order of the page, on a small model.

`optimize` gets `--arch none` besides, and `bench` times few runs. What takes a GPU, a compiler, a browser or another
model is left out.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import onnxopt
from onnxopt.tools import timing
from onnxopt.tools.cli import main
from tests.project.test_docs import DOCS
from tests.support.small_models import write

MODEL = """
g (float[batch, length] ids) => (float[batch, length] y) { a = Tanh(ids) b = Mul(a, ids) y = Add(b, a) }
"""
PAGES = ("bench", "convert", "debugging", "precision", "report", "verify")
LEFT_OUT = ("--on cuda", "--emulate", "--netron", "QUANTIZED", "FLOAT32")
FILES = ("monday.npz", "tuesday.npz", "typical.npz", "long.npz", "inputs.npz")  # of the user's inputs


def commands(page: str) -> list[str]:
    """Lines of the page's fenced blocks that begin with onnxopt, without their comments."""
    text = (DOCS / f"{page}.md").read_text("utf-8")
    blocks = [block for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M) if not language]
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(r"onnxopt [a-z]", line) and not any(words in line for words in LEFT_OUT)]


@pytest.mark.usefixtures("library", "without_footprints")
@pytest.mark.parametrize("page", PAGES)
def test_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(timing, "_MAX", 7)
    monkeypatch.setattr(timing, "_WARM_UP_SECONDS", 0.01)
    write(tmp_path / "model.onnx", MODEL)
    write(tmp_path / "other.onnx", MODEL)
    for name in FILES:
        np.savez(tmp_path / name, ids=np.ones((2, 3), np.float32))
    onnxopt.optimize(tmp_path / "model.onnx", tmp_path / "artifact", archs=(), verify=False)
    shutil.copytree(tmp_path / "artifact", tmp_path / "ARTIFACT")
    lines = commands(page)
    assert lines
    for line in lines:
        run(line, tmp_path)


def run(line: str, folder: Path) -> None:
    command, _, target = line.partition(" > ")
    words = shlex.split(command)[1:]
    if words[0] == "optimize":
        words += ["--arch", "none", "--force"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, f"{line}\n{result.output}"
    if target:
        (folder / target).write_text(result.stdout)
