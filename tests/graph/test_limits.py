"""limits: what a small file may ask for is bounded before it is opened, with the numbers in the message."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxopt.errors import ModelError
from onnxopt.graph import external_data, limits, read
from tests.support.hostile.hostile_models import model_of, value


def _calls(calls: dict[str, list[str]]) -> onnx.ModelProto:
    """A model that calls f0; calls: the functions that each function calls, "" for Neg."""
    model = model_of([helper.make_node("f0", ["x"], ["y"], domain="f")], [value("x", [2])], [value("y", [2])])
    model.opset_import.add(domain="f", version=1)
    model.ir_version = 8
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    for name, called in calls.items():
        nodes = [
            helper.make_node(op or "Neg", ["x"], [f"y{k}"], domain="f" if op else "") for k, op in enumerate(called)
        ]
        model.functions.append(helper.make_function("f", name, ["x"], ["y0"], nodes, opsets))
    return model


def _refused(model: onnx.ModelProto, folder: Path) -> str:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    started = time.monotonic()
    with pytest.raises(ModelError) as caught:
        read.load(path)
    assert time.monotonic() - started < 5
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_function_bomb(tmp_path: Path) -> None:
    calls = {f"f{k}": [f"f{k + 1}"] * 2 for k in range(40)} | {"f40": [""]}
    assert f"inline to {2**40:,} nodes; at most 250,000" in _refused(_calls(calls), tmp_path)


def test_a_function_bomb_of_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is accepted is optimized in minutes: at most 250,000 nodes, or 16 times those of the file."""
    calls = {f"f{k}": [f"f{k + 1}"] * 2 for k in range(18)} | {"f18": [""]}
    assert f"inline to {2**18:,} nodes; at most 250,000" in _refused(_calls(calls), tmp_path)
    monkeypatch.setattr(limits, "MAX_NODES", 250)
    large = _calls({"f0": [*["f1"] * 8, *[""] * 40], "f1": [""] * 40})
    bomb = _calls({"f0": ["f1"] * 41, "f1": [""] * 40})
    assert "to 1,640 nodes; at most 1,312 are accepted" in _refused(bomb, tmp_path)
    onnx.save(large, tmp_path / "large.onnx")
    assert len(read.load(tmp_path / "large.onnx").model.functions) == 2


def test_functions_that_call_themselves(tmp_path: Path) -> None:
    assert "function f.f0 calls itself" in _refused(_calls({"f0": ["f0"]}), tmp_path)
    assert "calls itself" in _refused(_calls({"f0": ["f1"], "f1": ["f0"]}), tmp_path)


def test_functions_that_nobody_calls_count_too(tmp_path: Path) -> None:
    assert "function f.g calls itself" in _refused(_calls({"f0": [""], "g": ["g"]}), tmp_path)


def test_a_deep_chain_of_functions(tmp_path: Path) -> None:
    calls = {f"f{k}": [f"f{k + 1}"] for k in range(500)} | {"f500": [""]}
    assert "more than 64 deep" in _refused(_calls(calls), tmp_path)


def test_many_calls_of_one_function_are_no_bomb(tmp_path: Path) -> None:
    calls = {f"f{k}": [f"f{k + 1}"] * 2 for k in range(8)} | {"f8": ["", ""]}
    onnx.save(_calls(calls), tmp_path / "m.onnx")
    assert len(read.load(tmp_path / "m.onnx").model.functions) == 9


def _with_weight(weight: onnx.TensorProto) -> onnx.ModelProto:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [4])], [value("y", None)])
    model.graph.initializer.append(weight)
    return model


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dims": [2**40], "data_type": 1, "raw_data": b"\0" * 16}, "needs 4398046511104 bytes, 16 bytes are stored"),
        ({"dims": [4], "data_type": 1, "raw_data": b"\0" * 15}, "needs 16 bytes, 15 bytes"),
        ({"dims": [3], "data_type": 1, "float_data": [1.0]}, "needs 3 elements, 1 elements"),
        ({"dims": [2**62, 4], "data_type": 7, "int64_data": [1]}, "1 elements are stored"),
        ({"dims": [-1], "data_type": 1, "float_data": [1.0]}, "negative dim: [-1]"),
        ({"dims": [1], "data_type": 99, "raw_data": b"\0"}, "data type 99 is not one of ONNX"),
    ],
)  # fmt: skip
def test_a_tensor_without_the_data_that_its_shape_needs(tmp_path: Path, fields: dict, words: str) -> None:
    message = _refused(_with_weight(TensorProto(name="w", **fields)), tmp_path)
    assert "tensor 'w'" in message
    assert words in message


@pytest.mark.parametrize("number", [n for n in TensorProto.DataType.values() if n != TensorProto.UNDEFINED])
@pytest.mark.parametrize("raw", [False, True])
def test_what_onnx_itself_writes_is_accepted(tmp_path: Path, number: int, raw: bool) -> None:
    """Odd counts, since dtypes below 8 bits share bytes."""
    if number == TensorProto.STRING:
        tensor = helper.make_tensor("w", number, [3], [b"a", b"b", b"c"])
    else:
        dtype = helper.tensor_dtype_to_np_dtype(number)
        tensor = numpy_helper.from_array(np.zeros(3, dtype), "w")
        if not raw:
            tensor = helper.make_tensor("w", number, [3], np.zeros(3, dtype).tolist())
    model = _with_weight(tensor)
    limits.check_tensors(tmp_path, model)
    assert len(list(external_data.tensors_of(model))) == 1


def test_a_sparse_tensor_of_terabytes(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [4])], [value("y", None)])
    values, indices = numpy_helper.from_array(np.ones(2, "f"), "w"), numpy_helper.from_array(np.array([3, 9]))
    model.graph.sparse_initializer.append(onnx.SparseTensorProto(dims=[2**40], values=values, indices=indices))
    assert "1,099,511,627,776 elements when dense; at most" in _refused(model, tmp_path)
