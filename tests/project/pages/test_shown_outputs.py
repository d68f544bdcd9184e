"""Every output that a page shows is what the program prints today: numbers and hashes of names may differ, words not.

README.md, docs/tutorial.md, docs/cli.md and docs/python.md have tests of their own. A new block of output fails until
a test here makes it.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner

import onnxopt
from onnxopt.tools.cli import main
from tests.project.test_docs import DOCS, PAGES, ROOT
from tests.support.precision import quantizable
from tests.support.small_models import HEADER, write

HELD_ELSEWHERE = {ROOT / "README.md", DOCS / "tutorial.md", DOCS / "cli.md", DOCS / "python.md"}
COMMANDS = (
    r"\$ |#|onnxopt |pip |make |python3? |docker |git |rm |curl |tritonserver|g\+\+|source |optimum-cli |uvicorn "
)
COMMAND = re.compile(rf"{COMMANDS}|cd |examples/|build/|[A-Z_]+=")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.S | re.M)
# Blocks by their page and the words that they begin with, and the part of this file that makes them; tests/tools/
# test_check.py makes that of `check`.
PARTS = {
    ("verify", "verified"): "verify",
    ("verify", "CUDA (emulated)"): "emulate",
    ("verify", "does not count"): "constant",
    ("verify", "quality against"): "quality",
    ("precision", "precision:"): "precision",
    ("verify", "CPUExecutionProvider: left out"): "format",
    ("verify", "CPUExecutionProvider: the original is unstable"): "format",
    ("verify", "CUDAExecutionProvider: the original gives"): "format",
    ("artifact", '{"sha256"'): "kernels.json",
    ("report", '[{"provider"'): "bench",
    ("bench", "chain.onnx"): "check",
}
# A chain that runs on a CPU as well, a norm, and products that cuBLASLt runs.
FEED_FORWARD = """
g (float[batch, 64] x) => (float[batch, 64] y) <float half = {0.5}> {
  wave = Sin (x) less = Mul (wave, half) sum = Add (less, x)
  norm = LayerNormalization <axis = -1> (sum, scale, shift)
  wide = MatMul (norm, up) gate = Sigmoid (wide) activated = Mul (wide, gate)
  back = MatMul (activated, down) y = Add (back, sum)
}
"""
CONSTANT = """
g (float[n, 4] x) => (float[n, 4] y, float[n, 4] lengths) { y = Tanh(x) zero = Sub(x, x) lengths = Exp(zero) }
"""


def blocks() -> Iterator[tuple[Path, str]]:
    """The blocks of pages that are no commands and no code."""
    for page in PAGES:
        if page not in HELD_ELSEWHERE:
            for language, block in BLOCK.findall(page.read_text("utf-8")):
                if language in ("", "text", "json") and not all(
                    COMMAND.match(line.strip()) for line in block.splitlines() if line.strip()
                ):
                    yield page, block


def shown(part: str) -> list[str]:
    keys = [key for key, name in PARTS.items() if name == part]
    return [next(b for page, b in blocks() if page.stem == p and b.startswith(begin)) for p, begin in keys]


def lines(text: str) -> list[str]:
    """Without numbers, hashes in names, the widths of columns and rules, and errors, which may be "equal" as well."""
    text = re.sub(r"(?<= passed) .*", " #", text)
    text = re.sub(r"\b[A-Z][A-Za-z]+_[0-9a-f]{8}\b", "KERNEL", text).replace("KERNEL, ", "")
    text = re.sub(r"-{3,}", "---", re.sub(r"\d[\d.,]*(e[+-]\d+)?", "#", text))
    return [" ".join(line.split()).rstrip() for line in text.splitlines() if line.strip()]


def run(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def assert_makes(output: str, part: str) -> None:
    (block,) = shown(part)
    assert [line for line in lines(block) if line not in lines(output)] == [], output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    """network.onnx with the inputs that the pages name; model.onnx and its artifact for an H200."""
    folder = tmp_path_factory.mktemp("shown")
    quantizable.write(folder)
    for name, number in (("typical", 0), ("long", 1), ("inputs", 0)):
        shutil.copy(folder / f"calibrate{number}.npz", folder / f"{name}.npz")
    model = onnx.parser.parse_model(HEADER + FEED_FORWARD)
    draw = np.random.default_rng(0)
    for name, shape in (("scale", (64,)), ("shift", (64,)), ("up", (64, 256)), ("down", (256, 64))):
        values = draw.standard_normal(shape).astype(np.float32) / 8
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, folder / "model.onnx")
    onnxopt.optimize(folder / "model.onnx", folder / "artifact", archs=["sm_90"], verify=False)
    return folder


def test_every_block_of_output_is_made_here() -> None:
    keys = {
        (page.stem, begin)
        for page, block in blocks()
        for p, begin in PARTS
        if p == page.stem and block.startswith(begin)
    }
    assert keys == set(PARTS)
    assert [(page.name, block) for page, block in blocks() if not any(block.startswith(b) for _, b in PARTS)] == []


def test_verify(folder: Path) -> None:
    assert_makes(run("verify", folder / "model.onnx", folder / "artifact"), "verify")


def test_emulate(folder: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("an emulation takes g++")
    assert_makes(run("verify", folder / "artifact", "--emulate"), "emulate")


def test_an_output_that_does_not_count(tmp_path: Path, library: Path) -> None:
    model = write(tmp_path / "model.onnx", CONSTANT)
    onnxopt.optimize(model, tmp_path / "artifact", archs=(), verify=False)
    assert_makes(run("verify", model, tmp_path / "artifact"), "constant")


def test_precision(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    ranges = ("--calibrate", "typical.npz", "--calibrate", "long.npz")
    target = tmp_path / "artifact"
    run("optimize", "network.onnx", "-o", target, "--arch", "none", "--precision", "float16", *ranges)
    assert_makes(run("explain", target), "precision")


def test_quality(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    quantized = onnxopt.quantize("network.onnx", tmp_path / "q.onnx", format="int8", calibrate=["inputs.npz"])
    onnxopt.optimize(quantized.path, tmp_path / "artifact", archs=(), verify=False)
    told = run("verify", tmp_path / "artifact", "--reference", "network.onnx", "--data", "inputs.npz", "--on", "cpu")
    assert_makes(told, "quality")


def formats() -> list[re.Pattern[str]]:
    """What the f-strings of verification can become, those of one message joined as the program joins them."""
    found = []
    for path in (ROOT / "onnxopt" / "verification").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [re.escape(v.value) if isinstance(v, ast.Constant) else "(.+)" for v in node.values]
                if sum(len(v.value.split()) for v in node.values if isinstance(v, ast.Constant)) >= 5:
                    found.append(re.compile("".join(parts)))
    return found


@pytest.mark.parametrize("block", shown("format"))
def test_notes_that_take_a_gpu_or_time(block: str) -> None:
    """Their words are those of an f-string, with or without a provider before them."""
    (line,) = block.splitlines()
    _, _, message = line.partition(": ")
    assert any(pattern.fullmatch(text) for pattern in formats() for text in (line, message)), line


def test_kernels_json(folder: Path) -> None:
    """The page shortens lists; every key that it names is one of the file."""
    (block,) = shown("kernels.json")
    text = (folder / "artifact" / "lib" / "kernels.json").read_text("utf-8")
    assert set(re.findall(r'"(\w+)":', block)) <= set(re.findall(r'"(\w+)": ?', text))
    assert json.loads(text)["schema"] == int(re.findall(r'"schema": (\d+)', block)[0])


def test_bench_results_as_the_report_reads_them(folder: Path, tmp_path: Path) -> None:
    (block,) = shown("bench")
    (named,) = json.loads(block)[0]["kernels"]
    variants = [
        v["symbol"]
        for kernel in json.loads((folder / "artifact/lib/kernels.json").read_text())["kernels"]
        for v in kernel.get("variants", ())
    ]
    (tmp_path / "bench.json").write_text(block.replace(named, variants[0]))
    run("report", folder / "artifact", "--bench", tmp_path / "bench.json", "-o", tmp_path / "report.html")
    assert "NVIDIA H200" in (tmp_path / "report.html").read_text("utf-8")
