"""A fixed handful of the random graphs of tests/fuzz.py; `make fuzz` runs many more."""

from __future__ import annotations

from pathlib import Path

import fuzz
import onnx
import onnx.helper
import pytest

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
    """ONNX Runtime's Sigmoid(-8) is off by 2e-4 of itself; its Tanh is not."""
    for operator, errs in (("Sigmoid", True), ("Tanh", False)):
        path = tmp_path / f"{operator}.onnx"
        shift = onnx.helper.make_tensor("shift", onnx.TensorProto.FLOAT, [], [-8.0])
        nodes = [
            onnx.helper.make_node("Mul", ["x", "none"], ["zero"]),
            onnx.helper.make_node("Add", ["zero", "shift"], ["s"]),
        ]
        nodes.append(onnx.helper.make_node(operator, ["s"], ["y"]))
        none = onnx.helper.make_tensor("none", onnx.TensorProto.FLOAT, [], [0.0])
        x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in "xy")
        graph = onnx.helper.make_graph(nodes, "g", [x], [y], [shift, none])
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9), path)
        assert fuzz.original_errs(path) is errs
