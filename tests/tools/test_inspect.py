"""`onnxopt inspect`: what it counts, and that a model's names do nothing to a terminal."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.support.command import run
from tests.support.small_models import CHAIN, NOTHING_TO_FUSE, write


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return write(tmp_path / "chain.onnx", CHAIN)


def test_inspect(chain: Path) -> None:
    result = run("inspect", chain)
    assert result.exit_code == 0
    assert "input: x: float32[batch,8]" in result.stdout
    assert "nodes: 7, 6 of them elementwise" in result.stdout


def test_inspect_escapes_what_a_terminal_would_obey(tmp_path: Path) -> None:
    model = onnx.load(write(tmp_path / "m.onnx", NOTHING_TO_FUSE))
    model.producer_name = "\x1b[31mred\x07\u202e\nparameters: 0"
    model.graph.node[0].op_type = "Mat\x9bMul"
    model.graph.node[0].domain = "d\r"
    model.opset_import.add(domain="d\r", version=1)
    onnx.save(model, tmp_path / "m.onnx")
    result = run("inspect", tmp_path / "m.onnx")
    assert result.exit_code == 0, result.output
    assert r"\x1b[31mred\x07\u202e" in result.stdout
    assert r"d\r::Mat\x9bMul" in result.stdout
    assert r"\nparameters: 0" in result.stdout
    assert all(c.isprintable() or c == "\n" for c in result.stdout)
