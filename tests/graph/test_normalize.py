"""normalize: what each hostile and each real model computes, and its interface, stay the same; what is useless goes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import models
from models.entries import Trained
from models.exported import RARE
from onnxopt.errors import ModelError
from onnxopt.graph import normalize, read, write
from onnxopt.graph.shapes import infer
from tests.support import real_models
from tests.support.hostile.hostile_models import MODELS, OPSETS, model_of, text, value


def normalized(model: onnx.ModelProto, folder: Path, **options: object) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """`model` after load, normalize, save; checked."""
    onnx.save(model, folder / "original.onnx")
    result = normalize.normalize(read.load(folder / "original.onnx").model, **options)
    write.save(result.model, folder)
    onnx.checker.check_model(folder / "model.onnx")
    return onnx.load(folder / "model.onnx"), result.notes


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def run(path: Path, feeds: list[dict[str, np.ndarray]]) -> tuple[list[list], list[tuple]]:
    """Outputs for each of the feeds, and the interface as ORT sees it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    ends = (*session.get_inputs(), *session.get_overridable_initializers(), *session.get_outputs())
    return [session.run(None, feed) for feed in feeds], [(e.name, e.type, e.shape) for e in ends]


def assert_equal(wanted: object, found: object) -> None:
    if isinstance(wanted, list):
        assert len(wanted) == len(found)
        for a, b in zip(wanted, found, strict=True):
            assert_equal(a, b)
    elif wanted.dtype == object:
        np.testing.assert_array_equal(wanted, found)
    else:
        assert wanted.dtype == found.dtype
        tolerance = 1e-3 if wanted.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), tolerance, tolerance)


class Hostile(NamedTuple):
    """A hostile model and its inputs, original.onnx and model.onnx in the folder, and what normalizing made of it."""

    original: onnx.ModelProto
    feeds: list[dict[str, np.ndarray]]
    folder: Path
    result: onnx.ModelProto
    notes: tuple[str, ...]


@pytest.fixture(scope="module", params=MODELS)
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    original, feeds = MODELS[request.param]()
    folder = tmp_path_factory.mktemp("hostile")
    return Hostile(original, feeds, folder, *normalized(original, folder))


def test_hostile_model_computes_the_same(hostile: Hostile) -> None:
    original, result = hostile.original, hostile.result
    wanted, interface = run(hostile.folder / "original.onnx", hostile.feeds)
    found, interface_found = run(hostile.folder / "model.onnx", hostile.feeds)
    assert interface_found == interface
    if original.ir_version > 3:
        assert [v.name for v in result.graph.input] == [v.name for v in original.graph.input]
        assert list(result.graph.input) == list(original.graph.input)
    assert list(result.graph.output) == list(original.graph.output)
    assert_equal(wanted, found)
    assert result.ir_version <= max(10, original.ir_version)


def test_normalizing_twice_changes_nothing(hostile: Hostile, tmp_path: Path) -> None:
    twice, _ = normalized(hostile.result, tmp_path)
    assert sorted(operators(twice)) == sorted(operators(hostile.result))


def test_names_are_unique_and_no_function_is_left(hostile: Hostile) -> None:
    model = ir.from_proto(hostile.result)
    assert not model.functions
    nodes = [node.name for node in model.graph.all_nodes()]
    assert all(nodes)
    assert len(set(nodes)) == len(nodes)
    values = [v for n in model.graph.all_nodes() for v in n.outputs if v.name]
    values += [v for g in model.graphs() for v in (*g.inputs, *g.initializers.values()) if not v.producer()]
    assert len({v.name for v in values}) == len(set(values))


def test_the_model_hardly_grows(hostile: Hostile) -> None:
    if not hostile.notes and not hostile.original.functions:  # conversion and inlining add what later opsets need
        size = hostile.original.ByteSize()
        assert hostile.result.ByteSize() <= size * 1.01 + 64 * len(hostile.original.graph.node)


# Every small model of the collection that ONNX Runtime runs.
REAL = [
    name
    for name in models.names(runnable=True)
    if (isinstance(row := models.entry(name), Trained) and row.bytes < 20e6) or getattr(row, "size", "") == "tiny"
]


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", real_models.sampled(REAL, RARE))
def test_real_model_keeps_its_interface_and_does_not_grow(name: str, tmp_path: Path) -> None:
    path = real_models.path(name)
    source = read.load(path)
    result = normalize.normalize(source.model)
    write.save(result.model, tmp_path)
    onnx.checker.check_model(tmp_path / "model.onnx")
    _, interface = run(path, [])
    _, found = run(tmp_path / "model.onnx", [])
    assert found == interface
    assert (tmp_path / "model.onnx").stat().st_size <= source.bytes * 1.01 + 4_000


# --- what goes -------------------------------------------------------------------------------------------------------


def test_no_ops_go(tmp_path: Path) -> None:
    assert operators(normalized(MODELS["no_op_data_movement"]()[0], tmp_path)[0]) == ["Identity", "Exp"]


def test_equal_nodes_merge_and_equal_weights_too(tmp_path: Path) -> None:
    model, _ = text("""g (float[N,M] x) => (float[N,M] y) {
        a = Exp(x)  b = Exp(x)  c = Tanh(a)  d = Tanh(b)  y = Add(c, d)
    }""")
    assert operators(normalized(model, tmp_path)[0]) == ["Exp", "Tanh", "Add"]
    shared, _ = normalized(MODELS["shared_weights"]()[0], tmp_path)
    assert len(shared.graph.initializer) == 2


def test_unused_nodes_and_weights_go(tmp_path: Path) -> None:
    model, _ = text("g (float[N,M] x) => (float[N,M] y) <float[1] w = {1}> { a = Exp(x)  b = Tanh(a)  y = Neg(x) }")
    result, _ = normalized(model, tmp_path)
    assert operators(result) == ["Neg"]
    assert not result.graph.initializer


def test_dropout_goes(tmp_path: Path) -> None:
    for opset in (7, 11, 13, 17):
        node = helper.make_node("Dropout", ["a"], ["b"], **({"ratio": 0.5} if opset < 12 else {}))
        nodes = [helper.make_node("Exp", ["x"], ["a"]), node, helper.make_node("Neg", ["b"], ["y"])]
        model = model_of(nodes, [value("x", ["N"])], [value("y", ["N"])], opset=opset)
        assert operators(normalized(model, tmp_path)[0]) == ["Exp", "Neg"]


def test_lossless_casts_go_and_rounding_ones_stay(tmp_path: Path) -> None:
    model, _ = text("""g (float16[N] x, float[N] f) => (float[N] y, float[N] z) {
        a = Cast <to = 11> (x)  y = Cast <to = 1> (a)  b = Cast <to = 10> (f)  z = Cast <to = 1> (b)
    }""")
    assert operators(normalized(model, tmp_path)[0]) == ["Cast", "Cast", "Cast"]


def test_computed_reshape_of_one_unknown_dim_becomes_constant(tmp_path: Path) -> None:
    model, _ = text("""g (float[N,4,6] x) => (float[N,24] y) {
        s = Shape <end = 1> (x)  m = Constant <value_ints = [24]> ()  d = Concat <axis = 0> (s, m)  y = Reshape(x, d)
    }""")
    assert operators(normalized(model, tmp_path)[0]) == ["Reshape"]


def test_long_computations_of_constants_are_folded(tmp_path: Path) -> None:
    """As each layer of BEiT computes a table of positions: 200 MB are read and written, and nothing becomes larger."""
    table = helper.make_tensor_value_info("x", onnx.TensorProto.INT64, [1])
    negated = [helper.make_node("Neg", [f"t{k}"], [f"t{k + 1}"]) for k in range(25)]
    nodes = [
        *negated,
        helper.make_node("ReduceSum", ["t25"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    y = helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [1])
    constant = numpy_helper.from_array(np.ones((512, 1000), np.int64), "t0")
    graph = helper.make_graph(nodes, "g", [table], [y], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    found, _ = normalized(model, tmp_path)
    assert operators(found) == ["Add"]


def test_constants_are_folded(tmp_path: Path) -> None:
    model, _ = text("""g (float[N,2] x) => (float[N,2] y) <float[2] a = {1, 4}> {
        b = Sqrt(a)  c = Mul(b, b)  d = Sub(c, a)  e = Add(d, b)  y = Mul(x, e)
    }""")
    result, _ = normalized(model, tmp_path)
    assert operators(result) == ["Mul"]
    np.testing.assert_allclose(numpy_helper.to_array(result.graph.initializer[0]), [1, 2])


# --- what stays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["Expand", "Tile", "ConstantOfShape"])
def test_folding_does_not_make_the_model_larger(tmp_path: Path, operator: str) -> None:
    inputs = {"Expand": ["k", "s"], "Tile": ["k", "s"], "ConstantOfShape": ["s"]}[operator]
    weights = {"k": np.ones((1, 1), np.float32), "s": np.int64([300, 300]), "w": np.ones((300, 300), np.float32)}
    if operator == "Tile":  # of one element it is Expand
        weights |= {"k": np.ones((3, 3), np.float32), "s": np.int64([100, 100])}
    nodes = [
        helper.make_node(operator, inputs, ["big"]),
        helper.make_node("MatMul", ["big", "x"], ["p"]),
        helper.make_node("Sum", ["p", "w"], ["y"]),
    ]
    model = model_of(nodes, [value("x", [300, 300])], [value("y", [300, 300])], weights)
    result, _ = normalized(model, tmp_path)
    assert operator in operators(result)
    assert result.ByteSize() <= model.ByteSize() * 1.01


def test_growth_is_the_callers_choice(tmp_path: Path) -> None:
    weights = {"k": np.ones((1, 1), np.float32), "s": np.int64([100, 100]), "w": np.ones((200, 200), np.float32)}
    nodes = [helper.make_node("Expand", ["k", "s"], ["big"]), helper.make_node("MatMul", ["big", "x"], ["y"])]
    nodes.append(helper.make_node("MatMul", ["v", "w"], ["z"]))
    inputs, outputs = [value("x", [100, 100]), value("v", [1, 200])], [value("y", [100, 100]), value("z", [1, 200])]
    model = model_of(nodes, inputs, outputs, weights, opset=20)
    assert "Expand" in operators(normalized(model, tmp_path, growth=0.0)[0])
    assert "Expand" not in operators(normalized(model, tmp_path, growth=0.5)[0])


def test_random_nodes_stay_apart(tmp_path: Path) -> None:
    model, _ = text(
        """g (float[N] x) => (float[N] y, float[N] z, float[N] u, float[N] v) {
        a = Bernoulli(x)  b = Bernoulli(x)  y = Neg(a)  z = Neg(b)
        u = com.microsoft.Trilu(x)  v = com.microsoft.Trilu(x)
    }""",
        domains=', "com.microsoft" : 1',
    )
    assert sorted(operators(normalized(model, tmp_path)[0])) == sorted(operators(model))


def test_default_values_of_inputs_are_not_constants(tmp_path: Path) -> None:
    result, _ = normalized(MODELS["initializers_that_are_inputs"]()[0], tmp_path)
    assert operators(result) == ["Mul", "Mul", "Reshape", "Exp"]


def test_wrong_shapes_inside_are_not_believed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Reshape", ["x", "s"], ["y"]),
    ]
    model = model_of(nodes, [value("x", ["N", "M"])], [value("y", ["N", "M"])])
    model.graph.value_info.append(value("a", [3, 5]))
    normalized(model, tmp_path)
    x = np.ones((2, 4), np.float32)
    (outputs,), _ = run(tmp_path / "model.onnx", [{"x": x}])
    np.testing.assert_array_equal(outputs[0], x)


def test_metadata_stays_and_none_is_added(tmp_path: Path) -> None:
    model, _ = text("""g (float[N,M] x) => (float[N,M] y) {
        k = Constant <value_float = 1.0> ()  a = Exp(x)  b = Mul(a, k)  y = Neg(b)
    }""")
    model.metadata_props.add(key="labels", value="cat,dog")
    model.doc_string = "text"
    model.producer_name = "exporter"
    result, _ = normalized(model, tmp_path)
    assert [(p.key, p.value) for p in result.metadata_props] == [("labels", "cat,dog")]
    assert (result.doc_string, result.producer_name) == ("text", "exporter")
    assert operators(result) == ["Exp", "Neg"]
    assert not any(node.metadata_props for node in result.graph.node)


# --- opsets and versions ---------------------------------------------------------------------------------------------


def test_versions_are_the_lowest_that_do(tmp_path: Path) -> None:
    model, _ = text("g (float[N] x) => (float[N] y) { y = Exp(x) }", opset=23, ir_version=11)
    result, notes = normalized(model, tmp_path)
    assert (result.opset_import[0].version, result.ir_version) == (20, 9)
    assert notes == ("opset 23 lowered to 20, in which all operators mean the same",)
    model, _ = text("g (float[N] x) => (float[N] y) { y = Swish(x) }", opset=24, ir_version=11)
    kept, notes = normalized(model, tmp_path)
    assert (kept.opset_import[0].version, kept.ir_version) == (24, 12)
    assert notes == ("opset 24 kept: opset 22 has no Swish of the same meaning",)


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset_reaches_20(opset: int, tmp_path: Path) -> None:
    result, _ = normalized(MODELS[f"opset_{opset}"]()[0], tmp_path)
    assert result.opset_import[0].version == 20


def test_a_model_that_cannot_be_converted_keeps_its_opset(tmp_path: Path) -> None:
    model, feeds = text(
        """g (float[1,1,4,4] x, float[4] s) => (float[1,1,A,B] y) {
            a = Resize <mode = "nearest"> (x, s)  y = Exp(a)
        }""",
        {},
        opset=10,
        ir_version=5,
    )
    result, notes = normalized(model, tmp_path)
    assert result.opset_import[0].version == 10
    assert notes == ("opset 10 kept: no later opset has a Resize with computed scales that rounds alike",)
    feeds = [{"x": feeds[0]["x"], "s": np.float32([1, 1, 2, 0.5])}]
    assert_equal(run(tmp_path / "original.onnx", feeds)[0], run(tmp_path / "model.onnx", feeds)[0])


def test_an_optimized_model_is_refused(tmp_path: Path) -> None:
    model, _ = text(
        """g (float[N] x) => (float[N] y) { y = onnxopt.Exp_0123(x) }
        <domain: "onnxopt", opset_import: ["" : 17]> Exp_0123 (a) => (b) { b = Exp(a) }""",
        domains=', "onnxopt" : 1',
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="optimized by onnxopt already; give the original"):
        normalize.normalize(read.load(tmp_path / "m.onnx").model)
    unfused, _ = text("g (float[N] x) => (float[N] y) { y = Exp(x) }")
    unfused.metadata_props.add(key=normalize.MARK, value="0.1")
    onnx.save(unfused, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="optimized by onnxopt already; give the original"):
        normalize.normalize(read.load(tmp_path / "m.onnx").model)


def test_a_pass_that_fails_is_named_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(MODELS["diamonds"]()[0], tmp_path / "m.onnx")
    defect = RuntimeError("no such plane")

    def fail(*_: object) -> None:
        raise defect

    monkeypatch.setattr(normalize.Fold, "__call__", fail)
    with pytest.raises(
        ModelError, match=r"^constant folding \(pass Fold\) failed: RuntimeError: no such plane"
    ) as caught:
        normalize.normalize(read.load(tmp_path / "m.onnx").model)
    assert caught.value.__cause__ is defect


def test_inference_that_fails_names_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = text("g (float[N] x) => (float[N] y) { a = Exp(x)  y = Abs(a) }")
    model.graph.node[1].name = "absolute"
    onnx.save(model, tmp_path / "m.onnx")
    rule_of, defect = infer.rule_of, RuntimeError("no such rule")

    def fail_at_abs(node: ir.Node) -> object:
        if node.op_type == "Abs":
            raise defect
        return rule_of(node)

    monkeypatch.setattr(infer, "rule_of", fail_at_abs)
    message = (
        r"^looking for dims that can only be 1 \(pass SingleSizesPass\) failed at node `absolute` \(Abs\): RuntimeError"
    )
    with pytest.raises(ModelError, match=message) as caught:
        normalize.normalize(read.load(tmp_path / "m.onnx").model)
    assert caught.value.__cause__.__cause__ is defect


def test_equally_named_nodes(tmp_path: Path) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["a"], name="n"), helper.make_node("Neg", ["a"], ["y"], name="n")]
    result, _ = normalized(model_of(nodes, [value("x", ["N"])], [value("y", ["N"])]), tmp_path)
    assert [node.name for node in result.graph.node] == ["n", "n_1"]


def test_the_model_is_changed_in_place(tmp_path: Path) -> None:
    onnx.save(MODELS["diamonds"]()[0], tmp_path / "m.onnx")
    model = read.load(tmp_path / "m.onnx").model
    assert normalize.normalize(model).model is model
    assert isinstance(model, ir.Model)
