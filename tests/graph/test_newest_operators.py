"""Operators of the newest opsets: each goes through the whole pipeline, or is refused by name."""

from __future__ import annotations

import functools
import re
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import onnxopt
from onnxopt.errors import NotVerifiedError, OnnxoptError
from onnxopt.runtime import releases

_FIRST = 24  # opset
_SCHEMAS = {s.name: s for s in onnx.defs.get_all_schemas() if s.domain == "" and s.since_version >= _FIRST}


@functools.cache
def _cases() -> dict[str, onnx.ModelProto]:
    """The first model of ONNX's own suite for every such operator, by its name."""
    from onnx.backend.test.case import node

    found: dict[str, onnx.ModelProto] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in node.collect_testcases(None):
            for row in case.model.graph.node:
                opset = max((o.version for o in case.model.opset_import if o.domain == ""), default=0)
                if row.domain == "" and row.op_type in _SCHEMAS and opset >= _SCHEMAS[row.op_type].since_version:
                    found.setdefault(row.op_type, case.model)
    return found


@pytest.mark.parametrize("name", sorted(_SCHEMAS))
def test_an_operator_is_taken_or_refused_by_name(name: str, tmp_path: Path) -> None:
    if name not in _cases():
        pytest.skip("ONNX's suite has no model of it")
    onnx.save(_cases()[name], tmp_path / "m.onnx")
    refusal, newest = _refusal(tmp_path / "m.onnx"), releases.reads(ort.__version__)
    if refusal is None:  # also where the operator's new version means the same for this model
        return
    if newest is not None and _SCHEMAS[name].since_version > newest[1]:
        assert isinstance(refusal, NotVerifiedError)
        expected = rf"needs ONNX Runtime [\d.]+ or later, and this is {ort.__version__}.*\b{name}\b"
    else:  # ONNX Runtime has the opset, and not all of the operator
        expected = rf"(does not open the original: .*|find an implementation for )\b{name}\b"
    assert re.search(expected, str(refusal)), refusal


def _refusal(model: Path) -> OnnxoptError | None:
    """Why a model is not optimized; None where it is, and agrees."""
    try:
        made = onnxopt.optimize(model, model.with_suffix(".made"), archs=("sm_90",))
    except OnnxoptError as error:
        return error
    return None if made.manifest.verify.status in ("passed", "undecided") else OnnxoptError(made.manifest.verify.reason)


def _tanh(path: Path, opset: int, ir_version: int, *more: onnx.NodeProto) -> Path:
    info = [helper.make_tensor_value_info(k, onnx.TensorProto.FLOAT, [4, 8]) for k in "xy"]
    nodes = [helper.make_node("Tanh", ["x"], ["t"]), *more, helper.make_node("Add", ["t", "x"], ["y"])]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version), path)
    return path


@pytest.mark.parametrize(("opset", "ir_version"), [(23, 10), (22, 11), (26, 13)])
def test_a_number_that_is_too_new_alone_is_lowered(
    opset: int, ir_version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the release before the one that is installed; the original of the manifest stays the user's."""
    monkeypatch.setattr(ort, "__version__", "1.22.1")
    model = _tanh(tmp_path / "m.onnx", opset, ir_version)
    made = onnxopt.optimize(model, tmp_path / "a", archs=())
    assert made.manifest.verify.status == "passed" and made.manifest.source.opsets == {"": opset}
    assert made.manifest.source.path == str(model.absolute()) and made.manifest.source.ir_version == ir_version
    assert onnxopt.verify(model, tmp_path / "a").agrees


def test_an_original_that_this_release_does_not_read(tmp_path: Path) -> None:
    """Is optimized, verified and timed against."""
    newest = releases.reads(ort.__version__)
    if newest is None or newest[1] >= onnx.defs.onnx_opset_version():
        pytest.skip("the installed ONNX Runtime reads every opset that onnx has")
    model = _tanh(tmp_path / "m.onnx", onnx.defs.onnx_opset_version(), newest[0] + 1)
    made = onnxopt.optimize(model, tmp_path / "a", archs=())
    assert made.manifest.verify.status == "passed"
    assert onnxopt.verify(model, made.path).agrees
    result = onnxopt.bench(made.path, iterations=3, footprints=False)
    assert result.compared <= 1 and result.against == f"original {model}"


def test_a_network_that_this_release_does_not_read_is_quantized(tmp_path: Path) -> None:
    newest, opset = releases.reads(ort.__version__), onnx.defs.onnx_opset_version()
    if newest is None or newest[1] >= opset:
        pytest.skip("the installed ONNX Runtime reads every opset that onnx has")
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 256]) for name in "xy")
    weight = numpy_helper.from_array(np.eye(256, dtype=np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("MatMul", ["t", "w"], ["p"]),
        helper.make_node("Tanh", ["p"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=newest[0] + 1)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", x=np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32))
    onnxopt.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", format="int8", calibrate=[tmp_path / "c.npz"])
    assert any(node.op_type == "DequantizeLinear" for node in onnx.load(tmp_path / "q.onnx").graph.node)


def test_an_operator_that_is_too_new_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "__version__", "1.22.1")
    swish = helper.make_node("Swish", ["t"], ["s"])
    model = _tanh(tmp_path / "m.onnx", 24, 11, swish)
    message = r"m\.onnx: opset 24 needs ONNX Runtime 1\.24 or later, and this is 1\.22\.1: opset 22 has no Swish"
    with pytest.raises(NotVerifiedError, match=message):
        onnxopt.optimize(model, tmp_path / "a", archs=())
    assert not (tmp_path / "a").exists()
    made = onnxopt.optimize(model, tmp_path / "a", archs=(), verify=False)
    x = np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)
    monkeypatch.undo()
    np.testing.assert_allclose(onnxopt.load(made.path).run(None, {"x": x})[0], np.tanh(x) + x, rtol=1e-5, atol=1e-6)
