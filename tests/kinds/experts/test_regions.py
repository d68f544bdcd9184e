"""Mixtures of experts in graphs: which are found whole, and what is said of those that are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from cases.experts import Case, fused
from cases.models import fuse
from onnxopt.graph import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.program.experts import Experts
from onnxopt.runtime import sessions

CASE = Case(3, 4, 2, 64, 32, "float16")


@pytest.mark.parametrize(
    "case",
    [
        CASE, dataclasses.replace(CASE, plain=True), dataclasses.replace(CASE, wide=False, dtype="bfloat16"),
        dataclasses.replace(CASE, activation="gelu", dtype="float32"),
        dataclasses.replace(CASE, biased=True, interleaved=True, activation="clamped"),
        dataclasses.replace(CASE, biased=True), dataclasses.replace(CASE, interleaved=True, dtype="float32"),
        dataclasses.replace(CASE, activation="squared"), Case(1, 5, 1, 8, 8, "float16", "relu", known=True),
    ],
    ids=str,
)  # fmt: skip
def test_whole_mixtures(case: Case) -> None:
    (region,) = fuse(ir.serde.deserialize_model(case.model())).regions
    meaning = region.meaning
    assert isinstance(meaning, Experts)
    biases = ["first_bias", "second_bias"] if case.biased else []
    assert [v.name for v in region.inputs] == ["x", "ids", "factors", "first", "second", *biases]
    assert meaning.interleaved == case.interleaved and len(meaning.biases) == len(biases)
    assert (meaning.experts, meaning.chosen) == (case.experts, case.chosen)
    assert (meaning.columns, meaning.hidden, meaning.gated) == (case.columns, case.hidden, case.gated)
    assert (region.traffic.flops is None) == (not case.known)
    assert sum(n.op_type == "MatMul" for n in region.nodes) == 2 * case.experts


@pytest.mark.parametrize("case", [CASE, dataclasses.replace(CASE, activation="squared", dtype="float32")], ids=str)
def test_names_and_bodies(case: Case, tmp_path: Path) -> None:
    """The body is the original nodes, which any provider runs; the name tells one expert."""
    found = fused(case)
    (kernel,) = found.kernels
    named = {"squared": "MatMulReluMulMatMul", "silu": "MatMulSigmoidMulMulAnd1More"}
    assert kernel.name.rsplit("_", 1)[0] == named[case.activation]
    feeds = case.feeds()
    results = []
    for name, model in (("original", found.original), ("optimized", found.optimized)):
        onnx.save(model, tmp_path / f"{name}.onnx")
        session = sessions.open_session(tmp_path / f"{name}.onnx", provider=sessions.CPU)
        results.append(sessions.run(session, feeds)["y"])
    assert np.array_equal(*results)


def _set(model: onnx.ModelProto, name: str, array: np.ndarray) -> None:
    (held,) = (t for t in model.graph.initializer if t.name == name)
    held.CopyFrom(numpy_helper.from_array(array, name))


def _node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    (node,) = (n for n in model.graph.node if n.name == name)
    return node


def _attribute(name: str, attribute: str, value: object) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        node = _node(model, name)
        kept = [a for a in node.attribute if a.name != attribute]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(attribute, value)])

    return change


def _read(name: str) -> Callable[[onnx.ModelProto], None]:
    return lambda model: model.graph.output.append(helper.make_empty_tensor_value_info(name))


def _more_scores(model: onnx.ModelProto) -> None:
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 5


def _input(name: str, position: int, value: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        _node(model, name).input[position] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_attribute("sorted", "largest", 1), "the rows are not ordered by a TopK of the experts' ids, smallest first"),
        (_input("sorted", 1, "k"), "the TopK that orders the rows may not keep all of them"),
        (_more_scores, "the experts are not known to be chosen by a TopK of 4 scores"),
        (_attribute("counts", "reduction", "max"), "the ends of the experts' rows are not counted as known"),
        (_attribute("totals", "reverse", 1), "the ends of the experts' rows are not counted as known"),
        (lambda m: _set(m, "width", np.float32(0.5)), "the ends of the experts' rows are not counted as known"),
        (_input("quotient", 1, "one"), "the rows are not the tokens in the experts' order"),
        (_attribute("total", "keepdims", 1), "the rows' results are not added up for each token"),
        (_input("numbers", 0, "one"), "the rows' results are not added up for each token"),
        (_read("ends"), "`ends` inside is read elsewhere too"),
        (_read("h"), "`h` inside is read elsewhere too"),
        (_input("biased_first", 1, "column"), "`first_bias` is not gathered for each row's expert"),
        (_input("f_column", 0, "scores_sum"), "the factors are not gathered in the experts' order"),
    ],
)
def test_what_is_left_is_said(change: Callable[[onnx.ModelProto], None], reason: str) -> None:
    model = dataclasses.replace(CASE, biased="first_bias" in reason).model()
    change(model)
    if "scores_sum" in str(model):
        model.graph.node.insert(0, helper.make_node("ReduceSum", ["scores", "axis1"], ["scores_sum"], keepdims=0))
    plan = fuse(ir.serde.deserialize_model(model))
    assert "experts" not in {region.kind.name for region in plan.regions}
    said = [r.reason for r in plan.refusals if "experts' products run one after the other" in r.reason]
    assert len(said) == 2 and all(text.startswith("4 experts' products") for text in said)
    assert said[1].endswith(f": {reason}"), said


def test_sizes_that_are_no_whole_accesses() -> None:
    plan = fuse(ir.serde.deserialize_model(dataclasses.replace(CASE, columns=60).model()))
    assert any("rows of 60 and 32 float16 are not whole accesses of 16 bytes" in r.reason for r in plan.refusals)


def test_many_rows_of_large_experts_are_one_kernel_too() -> None:
    case = dataclasses.replace(CASE, tokens=400_000, columns=256, hidden=256, known=True)
    (region,) = fuse(ir.serde.deserialize_model(case.model())).regions
    assert isinstance(region.meaning, Experts)
    assert region.traffic.flops == 400_000 * 2 * 3 * 2 * 256 * 256


def test_an_order_is_as_long_as_what_it_orders(tmp_path: Path) -> None:
    """Exporters compute the number of rows from sizes of the model's inputs, or take another layer's."""
    model = CASE.model()
    model.graph.node.insert(0, helper.make_node("Size", ["factors"], ["rows_of_all"]))
    _node(model, "numbers").input[1] = "rows_of_all"
    assert "experts" not in {region.kind.name for region in fuse(ir.serde.deserialize_model(model)).regions}
    normalized = normalize.normalize(ir.from_proto(model)).model
    rewrite(normalized, tmp_path)
    assert "experts" in {region.kind.name for region in fuse(normalized).regions}


def test_layers_share_a_kernel() -> None:
    """Whatever the order of their nodes in the graph."""
    one, two = CASE.model(), CASE.model()
    (first,), (second,) = fused(CASE).kernels, fuse(ir.serde.deserialize_model(one)).regions
    two.graph.node.sort(key=lambda n: n.op_type == "Split")  # not sorted: the test sorts it again below
    model = ir.serde.deserialize_model(two)
    model.graph.sort()
    (other,) = fuse(model).regions
    assert [n.name for n in other.nodes] == [n.name for n in second.nodes] and first.program == other.meaning


def _loop(experts: int) -> onnx.ModelProto:
    """Expert after expert, as exporters write a loop with index_add."""
    rng = np.random.default_rng(0)
    nodes, held = [], {"axis": np.array([0]), "last": np.array([-1])}
    for e in range(experts):
        held |= {f"e{e}": np.array(e), f"w{e}": rng.standard_normal((8, 16)).astype(np.float32)}
        held |= {f"v{e}": rng.standard_normal((16, 8)).astype(np.float32)}
        nodes += [
            helper.make_node("Equal", ["ids", f"e{e}"], [f"is{e}"]), helper.make_node("NonZero", [f"is{e}"], [f"n{e}"]),
            helper.make_node("Squeeze", [f"n{e}", "axis"], [f"t{e}"]),
            helper.make_node("Gather", ["x", f"t{e}"], [f"x{e}"]),
            helper.make_node("MatMul", [f"x{e}", f"w{e}"], [f"g{e}"]),
            helper.make_node("Relu", [f"g{e}"], [f"h{e}"]), helper.make_node("MatMul", [f"h{e}", f"v{e}"], [f"o{e}"]),
            helper.make_node("Unsqueeze", [f"t{e}", "last"], [f"u{e}"]),
            helper.make_node("ScatterND", [f"y{e - 1}" if e else "x", f"u{e}", f"o{e}"], [f"y{e}"], reduction="add"),
        ]  # fmt: skip
    infos = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["T", 8]),
        helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["T"]),
    ]
    kept = [numpy_helper.from_array(v, k) for k, v in held.items()]
    y = helper.make_tensor_value_info(f"y{experts - 1}", onnx.TensorProto.FLOAT, ["T", 8])
    graph = helper.make_graph(nodes, "g", infos, [y], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_a_loop_over_experts_is_said_once() -> None:
    said = [r.reason for r in fuse(ir.serde.deserialize_model(_loop(3))).refusals if "NonZero" in r.reason]
    assert len(said) == 1 and said[0].startswith(
        "3 experts run one after the other from NonZero, 6 products in 12 launches: how many tokens each has is read"
    )
    assert not [r for r in fuse(ir.serde.deserialize_model(_loop(1))).refusals if "behind NonZero" in r.reason]
