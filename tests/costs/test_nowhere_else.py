"""No number outside costs/ is beside a comment that says it was measured, or that something is faster from it on."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sorted(p for p in (ROOT / "onnxopt").rglob("*.py") if "costs" not in p.parts)
CPP = sorted(
    p for top in ("custom_ops", "cuda_kernels") for p in (ROOT / top).rglob("*.*") if p.suffix in (".h", ".cc", ".cuh")
)
# What is about something else than how long kernels take, and why.
EXCEPTIONS = {
    "onnxopt/artifact": "shows what was measured of an artifact",
    "onnxopt/graph/precision": "measures the ranges of values, not times",
    "onnxopt/runtime/footprint.py": "measures a session",
    "onnxopt/tools": "measures models, and compares what is faster",
    "onnxopt/verification": "measures errors and runs of the original",
    "custom_ops/kernel_file/measured": "reads the files that tune wrote",
    "custom_ops/program/generated/costs.h": "is written from costs/",
}
_WORD = re.compile(r"\b(measured|measurements?|faster|fastest|slower|slowest)\b|benchmarks/notes", re.IGNORECASE)
_TIME = re.compile(r"\d (us|ms)\b")
_BITS = re.compile(r"\b\d+([- ]bits?\b|-bit\b)|\b(float|bfloat|int|uint)\d+|\b(CUDA|cuDNN|ONNX Runtime|opset) \d[\d.]*")
_NUMBER = re.compile(r"(?<![\w.\"'])(?![01](?![\d.]))\d")  # of code: any but 0 and 1
_FIGURE = re.compile(r"(?<![\w.])\d")


def _speaks_of_time(sentence: str, *, beside_number: bool = False) -> bool:
    """Whether a sentence of a comment gives a figure of how long something takes, or explains the number beside it."""
    words = _BITS.sub("", sentence)
    return bool(_TIME.search(words) or (_WORD.search(words) and (beside_number or _FIGURE.search(words))))


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.;:]) ", " ".join(text.split()))


def _in_comments(comments: dict[int, str], code: dict[int, str]) -> Iterator[str]:
    """What comments say of the numbers on their line, or of those on the first line of code below them."""
    block: list[str] = []
    for line in range(1, max([*comments, *code], default=0) + 2):
        if line in comments and not code.get(line):
            block.append(comments[line])
            continue
        beside = bool(_NUMBER.search(code.get(line, "")))
        yield from (s for s in _sentences(" ".join(block)) if _speaks_of_time(s, beside_number=beside))
        block = []
        if line in comments and _speaks_of_time(comments[line], beside_number=beside):
            yield comments[line]


def of_python(text: str) -> list[str]:
    """The sentences of a module that belong to costs/."""
    comments, code = {}, dict(enumerate(text.splitlines(), 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            comments[line], code[line] = token.string.lstrip("# "), code[line][:column].strip()
    for node in ast.walk(ast.parse(text)):  # a comment above a table is about all of it
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.end_lineno != node.lineno:
            code[node.lineno] += " ".join(code[line] for line in range(node.lineno + 1, (node.end_lineno or 0) + 1))
    docs = (
        ast.get_docstring(n)
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)
    )
    found = [s for doc in docs for s in _sentences(doc or "") if _speaks_of_time(s)]
    return found + list(_in_comments(comments, code))


def of_cpp(text: str) -> list[str]:
    """The same of a C++ or CUDA file."""
    comments, code = {}, {}
    for number, line in enumerate(text.splitlines(), 1):
        before, mark, after = line.partition("//")
        code[number] = before.strip()
        if mark and before.count('"') % 2 == 0:
            comments[number] = after.strip()
    return list(_in_comments(comments, code))


def _is_searched(path: Path) -> bool:
    """Whether it is no exception, and some sentence of it may speak of time."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
    is_exempt = any(name == exception or name.startswith(f"{exception}/") for exception in EXCEPTIONS)
    return not is_exempt and bool(_WORD.search(text) or re.search(r"\b(us|ms)\b", text))


def test_measured_numbers_are_data() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {sentence}"
        for paths, sentences in ((PYTHON, of_python), (CPP, of_cpp))
        for path in paths
        if _is_searched(path)
        for sentence in sentences(path.read_text("utf-8"))
    ]
    assert not wrong, "these belong to onnxopt/costs/:\n" + "\n".join(wrong)


def test_every_exception_is_there() -> None:
    assert all((ROOT / name).exists() for name in EXCEPTIONS)


@pytest.mark.parametrize(
    "text",
    [
        "_MAX = 80  # keys up to which one tile is faster",
        "# Measured on one H200.\n_TILE = (2, 4, 16)",
        "# See benchmarks/notes: attention.\n_TILES = {\n    2: 4}",
        '"""Tiles.\n\nThe first takes 36 us, the second 41."""',
        "def f(size):\n    return size > 64  # larger ones are slower",
        'def f():\n    """Three products are faster from 16 MB on."""',
    ],
)
def test_such_numbers_are_recognised(text: str) -> None:
    assert of_python(text)


@pytest.mark.parametrize(
    "text",
    [
        "constexpr int kRow = 192;  // measured: shorter ones cost more",
        "// Microseconds, measured on one H200.\nconstexpr double kCall = 1.35;",
        "// Two launches take 5 us more than one.\nint f();",
    ],
)
def test_such_numbers_are_recognised_in_cpp(text: str) -> None:
    assert of_cpp(text)


@pytest.mark.parametrize(
    "text",
    [
        "_MAX = 80  # keys of a tile",
        "# ONNX Runtime's kernels are faster.\n_A = 1",
        "# Faster forms for 16 bits.\nx = f(y)",
    ],
)
def test_others_are_not(text: str) -> None:
    assert not of_python(text)
