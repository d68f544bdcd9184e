"""Heads whose outputs are all small: right kernels are kept, wrong ones left out, and what says little is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxopt
from onnxopt.artifact.manifest import Manifest
from onnxopt.program.operators import table as operators
from onnxopt.runtime import sessions
from onnxopt.verification.check import Check
from onnxopt.verification.compare import Difference, Limit, compare
from onnxopt.verification.rounding.exactness import FromFloat64
from onnxopt.verification.rounding.movement import Movement
from tests.support.fusing import cpu_kernels_forced

HEADER = '<ir_version: 10, opset_import: ["" : 20]> '
# Of ONNX Runtime's Sigmoid, 1e-4 is 6 limits from float64, and 1e-7 is 10,000.
HEADS = {"1e-4": ("Sigmoid", -9.0, 200), "1e-7": ("Sigmoid", -16.0, 200), "softmax": ("Softmax", 0.0, 50_000)}
ROWS = {"n": (4,)}


def _head(path: Path, operator: str, bias: float, classes: int, gain: float = 0.7) -> Path:
    text = "g (float[n, 32] x) => (float[n, %d] y) { t = MatMul(x, w) h = Tanh(t) u = Mul(h, k) o = MatMul(u, v) c = Add(o, d) y = %s(c) }"  # noqa: E501
    model = onnx.parser.parse_model(HEADER + text % (classes, operator))
    rng = np.random.default_rng(3)
    weights = {
        "w": rng.standard_normal((32, 32)) / 6, "v": rng.standard_normal((32, classes)) / 6,
        "k": np.full(32, gain), "d": np.full(classes, bias),
    }  # fmt: skip
    model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items())
    onnx.save(model, path)
    return path


def _optimized(path: Path, artifact: Path) -> Manifest:
    with cpu_kernels_forced():
        return onnxopt.optimize(path, artifact, archs=(), shapes=ROWS).manifest


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("head", HEADS)
def test_right_kernels_are_kept_and_count(head: str, tmp_path: Path, artifact: Path) -> None:
    manifest = _optimized(_head(tmp_path / "m.onnx", *HEADS[head]), artifact)
    assert manifest.left_out == () and len(manifest.kernels) >= 2
    assert manifest.verify.status == "passed" and manifest.verify.weak == ()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("head", HEADS)
def test_a_wrong_kernel_is_left_out(head: str, tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = operators.OPERATORS["", HEADS[head][0] if head != "softmax" else "Tanh"]
    wrong = dataclasses.replace(row, meaning=lambda c: row.meaning(c) * 1.5)
    monkeypatch.setitem(operators.OPERATORS, ("", row.name), wrong)  # type: ignore[index]
    manifest = _optimized(_head(tmp_path / "m.onnx", *HEADS[head]), artifact)
    assert any(row.name in left.ops for left in manifest.left_out)


@pytest.mark.parametrize("head", ["1e-4", "softmax"])
def test_a_hundredth_is_found(head: str, tmp_path: Path) -> None:
    original, wrong = _head(tmp_path / "a.onnx", *HEADS[head]), _head(tmp_path / "b.onnx", *HEADS[head], gain=0.707)
    assert onnxopt.verify(original, wrong, shapes=ROWS, providers=[sessions.CPU]).status == "failed"


def test_where_a_hundredth_is_not_found_the_output_does_not_count(tmp_path: Path) -> None:
    """ONNX Runtime's Sigmoid of -16 is off by all of its value."""
    original, wrong = _head(tmp_path / "a.onnx", *HEADS["1e-7"]), _head(tmp_path / "b.onnx", *HEADS["1e-7"], 0.707)
    report = onnxopt.verify(original, wrong, providers=[sessions.CPU])
    assert report.status == "undecided"
    assert "times the limit" in report.weak[0].reason


def test_a_check_is_sharp_where_a_hundredth_of_the_output_is_found() -> None:
    far = Check(
        "p", True, "c", "y", Difference("float32", (1,), excess=8.0), exactness=FromFloat64(8.0, 6.0, "float64")
    )
    assert far.ok and far.is_sharp(1e-4) and not far.is_sharp(1e-3)
    farther = dataclasses.replace(far, exactness=FromFloat64(8.0, 60.0, "float64"))
    assert farther.ok and not farther.is_sharp(1e-4)
    near = dataclasses.replace(far, exactness=FromFloat64(0.5, 60.0, "float64"))
    assert near.ok and near.is_sharp(1e-4)


# A head whose logits depend little on the hidden layer: a fault of a hundredth there moves the output by about a limit.
# The first column loses digits; what is wrong with large values of the others is less than what that loses.
PARTLY_LOST = (
    "g (float[n, 128] x) => (float[n, 128] y) "
    "{ s = Add(x, c) d = Sub(s, c) t = Tanh(d) a = Abs(d) l = Greater(a, hundred) f = Where(l, wrong, one) "
    "y = Mul(t, f) }"
)


def test_elements_that_lose_digits_excuse_no_others(tmp_path: Path) -> None:
    paths = []
    for name, factor in (("a", 1.0), ("b", 1.003)):
        model = onnx.parser.parse_model(HEADER + PARTLY_LOST)
        c = np.where(np.arange(128) == 0, 65536, 0)
        weights = {"c": c, "hundred": np.array(100.0), "wrong": np.array(factor), "one": np.array(1.0)}
        model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items())
        paths.append(tmp_path / f"{name}.onnx")
        onnx.save(model, paths[-1])
    report = onnxopt.verify(*paths, providers=[sessions.CPU])
    assert report.status == "failed"
    assert {check.case.split(", ")[1] for check in report.failures} >= {"values up to 10000"}


@pytest.mark.parametrize(
    ("moved", "other", "accounts"),
    [
        ((30, 20.0), (30, 20.0), True),
        ((30, 20.0), (240, 20.0), True),
        ((30, 20.0), (3000, 20.0), False),  # more elements
        ((400, 5.0), (3000, 6.0), True),
        ((400, 5.0), (3000, 15.0), False),  # as many, but more in the root mean square
        ((3000, 20.0), (30, 60.0), True),
    ],
)
def test_what_moves_accounts_for_as_much(moved: tuple[int, float], other: tuple[int, float], accounts: bool) -> None:
    """moved, other: how many elements are off, and by how many times the limit."""
    limit, expected = Limit(1e-4), np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    scale = 1e-4 * (np.abs(expected) + np.sqrt(np.mean(np.square(expected))))
    signs = np.where(np.arange(4000) % 2, 1.0, -1.0)
    run, found = (expected + np.where(np.arange(4000) < count, by * scale * signs, 0) for count, by in (moved, other))
    run, found = run.astype(np.float32), found.astype(np.float32)
    movement, excess = Movement(expected, found, limit), compare(expected, found, limit).excess
    movement.add(compare(expected, run, limit).excess or 0.0, run)
    assert excess is not None and (movement.accounts(excess) >= excess) is accounts
