"""A fixed handful of the random graphs of tests/fuzz/graphs.py; `make fuzz` runs many more."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.helper
import pytest

from tests.fuzz import graphs as fuzz

SEEDS = range(16)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graph(seed: int, tmp_path: Path, library: Path) -> None:
    problem, _ = fuzz.examine(seed, tmp_path)
    assert problem is None


def test_random_graphs_are_fused(tmp_path: Path, library: Path) -> None:
    """Guards the test above: were nothing fused, it would compare models with themselves."""
    assert sum(fuzz.examine(seed, tmp_path)[1] for seed in SEEDS[:6]) >= 6


def test_equal_seeds_give_equal_graphs() -> None:
    assert fuzz.Graph(3).model().SerializeToString() == fuzz.Graph(3).model().SerializeToString()


def test_original_that_errs_by_itself_is_told_apart(tmp_path: Path) -> None:
    """ONNX Runtime's Sigmoid(-8) is off by 2e-4 of itself; its Tanh is not. Of two outputs only one is excused."""
    make, float32 = onnx.helper.make_node, onnx.TensorProto.FLOAT
    nodes = [make("Mul", ["x", "none"], ["zero"]), make("Add", ["zero", "shift"], ["s"])]
    nodes += [make("Sigmoid", ["s"], ["y"]), make("Tanh", ["s"], ["z"])]
    x, y, z = (onnx.helper.make_tensor_value_info(n, float32, [3]) for n in "xyz")
    constants = [onnx.helper.make_tensor(n, float32, [], [v]) for n, v in (("none", 0.0), ("shift", -8.0))]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y, z], constants)
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9), path)
    assert fuzz.original_errs(path, "y")
    assert not fuzz.original_errs(path, "z")
