"""Operators of ONNX Runtime alone that changed since an artifact was made: named, refused, or not run."""

from __future__ import annotations

import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.errors import ArtifactError
from onnxopt.runtime import operator_schemas
from tests.support.command import run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An operator of com.microsoft that stays, beside one that is fused."""
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    info = [helper.make_tensor_value_info(k, onnx.TensorProto.FLOAT, [2, 64, 32]) for k in "xy"]
    nodes = [
        helper.make_node("MultiHeadAttention", ["x", "x", "x"], ["m"], domain="com.microsoft", num_heads=2),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("Add", ["t", "x"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def _schema(**changes: Any) -> types.SimpleNamespace:
    """What ONNX Runtime says of an operator, in its own form."""
    single, optional = (types.SimpleNamespace(name=name) for name in ("Single", "Optional"))
    formals = {"A": single, "B": single, "C": optional}
    inputs = [types.SimpleNamespace(name=name, typeStr="T", option=option) for name, option in formals.items()]
    attribute = types.SimpleNamespace(type=types.SimpleNamespace(name="FLOAT"), required=False)
    output = types.SimpleNamespace(name="Y", typeStr="T", option=single)
    fields = {"domain": "d", "name": "Op", "since_version": 1, "attributes": {"alpha": attribute}}
    return types.SimpleNamespace(**(fields | {"inputs": inputs, "outputs": [output]} | changes))


_RECORDED = operator_schemas.OperatorSchema(
    domain="d", name="Op", since=1, attributes={"alpha": "float"}, inputs=("A: T", "B: T"), outputs=("Y: T",)
)
_OF = _schema()
_REQUIRED = types.SimpleNamespace(type=types.SimpleNamespace(name="INT"), required=True)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (_OF, []),
        (_schema(inputs=_OF.inputs[:2]), []),  # an input that no node has
        (_schema(attributes=_OF.attributes | {"beta": _OF.attributes["alpha"]}), []),  # one more, with a default
        (None, ["d.Op is not there"]),
        (_schema(since_version=2), ["d.Op has version 2, not 1"]),
        (_schema(attributes={}), ["d.Op has no attribute alpha"]),
        (_schema(attributes={"alpha": _REQUIRED}), ["d.Op has attribute alpha of type int, not float"]),
        (_schema(attributes=_OF.attributes | {"axis": _REQUIRED}), ["d.Op needs attribute axis"]),
        (_schema(inputs=[*_OF.inputs[:1], _OF.inputs[2]]), ["d.Op has input 1 `C: T, optional`, not `B: T`"]),
        (_schema(inputs=_OF.inputs[:1]), ["d.Op has 1 inputs, not 2"]),
        (_schema(inputs=[*_OF.inputs[:2], _OF.inputs[0]]), ["d.Op needs input 2 `A: T`"]),
        (_schema(outputs=[]), ["d.Op has 0 outputs, not 1"]),
    ],
)
def test_differences(schema: Any, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_schemas, "_installed", lambda: {} if schema is None else {("d", "Op"): schema})
    assert operator_schemas.differences([_RECORDED]) == expected


def _changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a release where MultiHeadAttention is told no number of heads."""
    installed = dict(operator_schemas._installed())
    schema = installed["com.microsoft", "MultiHeadAttention"]
    kept = {name: a for name, a in schema.attributes.items() if name != "num_heads"}
    fields = ("domain", "name", "since_version", "inputs", "outputs")
    installed["com.microsoft", "MultiHeadAttention"] = types.SimpleNamespace(
        **{name: getattr(schema, name) for name in fields}, attributes=kept
    )
    monkeypatch.setattr(operator_schemas, "_installed", lambda: installed)


def test_an_artifact_of_another_operator_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = onnxopt.optimize(model, tmp_path / "a", archs=())
    (recorded,) = made.manifest.requires.operators
    assert str(recorded) == "com.microsoft.MultiHeadAttention" and recorded.since == 1
    assert recorded.inputs == ("query: T", "key: T, optional", "value: T, optional")
    assert recorded.attributes["num_heads"] == "int"
    onnxopt.load(made.path)
    assert (
        "as they were when the artifact was made: com.microsoft.MultiHeadAttention" in run("doctor", made.path).stdout
    )
    _changed(monkeypatch)
    with pytest.raises(
        ArtifactError, match=r"com\.microsoft\.MultiHeadAttention has no attribute num_heads\. Optimize the model"
    ):
        onnxopt.load(made.path)


def test_the_portable_model_takes_its_place(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = onnxopt.optimize(model, tmp_path / "a", archs=(), portable=True)
    x = np.linspace(-2, 2, 4096, dtype=np.float32).reshape(2, 64, 32)
    expected = onnxopt.load(made.path).run(None, {"x": x})[0]
    _changed(monkeypatch)
    with pytest.warns(RuntimeWarning, match=r"has no attribute num_heads\. model\.portable\.onnx runs in its place"):
        session = onnxopt.load(made.path)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-6)


def test_artifacts_of_schema_3_have_no_operators(model: Path, tmp_path: Path) -> None:
    made = onnxopt.optimize(model, tmp_path / "a", archs=())
    document = made.manifest.model_dump(mode="json") | {"schema_version": 3}
    del document["requires"]["operators"]
    assert manifests.Manifest.model_validate(document).requires.operators == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert operator_schemas.differences(()) == []
