"""Random compositions of reductions and elementwise operators: the CPU kernels against the model as it was."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from cases.models import fuse, outline
from tests.fuzz import rows as fuzz_rows
from tests.support.kinds.rowwise_models import Fused, difference, fused, session, with_library

pytestmark = pytest.mark.usefixtures("library")

# Bounded operators, so that what one rounding changes stays small.
_UNARY = ("Tanh", "Sigmoid", "Abs", "Neg", "Relu", "Erf")
_BINARY = ("Add", "Sub", "Mul", "Max")
_REDUCE = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp")
_NORMS = ("Softmax<axis = AXIS>({0})", "LogSoftmax<axis = AXIS>({0})", "LpNormalization<axis = AXIS>({0})")
SHAPES = ((4, 9, 5), (3, 40, 7), (2, 16, 33), (1, 300, 1), (5, 2, 64))


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, str, int]:
    """A random body over x, r (the domain's shape), g (last dim) and q (one element a row); its outputs; the axis."""
    axis = draw(st.sampled_from((1, 2)))
    known, read, lines = ["x", "r", "g", "q"], set(), []
    for k in range(draw(st.integers(2, 12))):
        form = draw(st.sampled_from(("unary", "binary", "binary", "reduce", "norm")))
        a, b = (draw(st.sampled_from(known[-6:] if draw(st.booleans()) else known)) for _ in range(2))
        full = [v for v in known if v in ("x", "r") or v.startswith("v")]
        if form == "unary":
            call = f"{draw(st.sampled_from(_UNARY))}({a})"
        elif form == "binary":
            call = f"{draw(st.sampled_from(_BINARY))}({a}, {b})"
            read.add(b)
        elif form == "reduce":
            a = draw(st.sampled_from(full))
            call = f"{draw(st.sampled_from(_REDUCE))}({a}, axes)"
        else:
            a = draw(st.sampled_from(full))
            call = draw(st.sampled_from(_NORMS)).format(a).replace("AXIS", str(axis))
        read.add(a)
        name = f"v{k}" if form == "norm" else f"w{k}"
        lines.append(f"{name} = {call}")
        known.append(name)
    outputs = [v for v in known[4:] if v not in read or draw(st.integers(0, 3)) == 0]
    return " ".join(lines), ", ".join(f"float[] {v}" for v in outputs), axis


@settings(max_examples=30, deadline=None)
@given(bodies(), st.sampled_from(SHAPES), st.booleans())
def test_random_compositions(drawn: tuple[str, str, int], shape: tuple[int, int, int], dynamic: bool) -> None:
    body, outputs, axis = drawn
    dims = ["A", "B", "C"] if dynamic else [str(d) for d in shape]
    row = [("1" if k == axis else d) for k, d in enumerate(dims)]
    inputs = f"float[{', '.join(dims)}] x, float[{', '.join(dims)}] r, float[{dims[2]}] g, float[{', '.join(row)}] q"
    found = fused(inputs, outputs, body, constants=f"int64[1] axes = {{{axis}}}", opset=21)
    rng = np.random.default_rng(0)
    row_shape = tuple(1 if k == axis else d for k, d in enumerate(shape))
    feeds = {"x": shape, "r": shape, "g": shape[2:], "q": row_shape}
    given_inputs = {i.name for i in session(found.original).get_inputs()}
    values = {k: rng.standard_normal(s).astype(np.float32) for k, s in feeds.items() if k in given_inputs}
    expected = session(found.original).run(None, values)
    with tempfile.TemporaryDirectory() as folder:
        ours = with_library(found, Path(folder)).run(None, values)
    for a, b in zip(ours, expected, strict=True):
        assert difference(a, b, 1e-4, 1e-4) <= 1


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9))
@example(4831842)  # a LayerNormalization that cancels
@example(54422)  # one of rows of equal elements
@example(1000)
@example(557)  # a norm of rows that are one number but for few elements
@example(284671)  # a norm of 33,001 elements that are nearly equal
def test_random_rowwise_graphs(seed: int) -> None:
    """Any rank and axes, masks, broadcast operands, several outputs, 16 bits, rows of 2 to 100,003, also none."""
    proto = fuzz_rows.Graph(seed).model()
    before = proto.SerializeToString()
    model = ir.from_proto(proto)
    plan = fuse(model)
    kernels = tuple(dataclasses.replace(k, cpu=True) for k in outline(model, plan))
    found = Fused(plan, kernels, before, ir.to_proto(model).SerializeToString())
    original = session(before)
    limit = 1e-4 if all(i.type != "tensor(float16)" for i in original.get_inputs()) else 3e-2
    dynamic = any(not isinstance(d, int) for i in original.get_inputs() for d in i.shape)
    with tempfile.TemporaryDirectory() as folder:
        ours = with_library(found, Path(folder))
        for size in (37, 1, *([0] if any(i.shape[:1] == ["N"] for i in original.get_inputs()) else [])):
            feeds = _feeds(original, size)
            pairs = list(zip(ours.run(None, feeds), original.run(None, feeds), strict=True))
            if any(difference(a, b, limit, limit) > 1 for a, b in pairs):
                # A norm of nearly equal elements cancels: then both are held against float64. Where all are equal,
                # their mean is off by an ulp, 2.4e-7 of elements around 3. An epsilon of 1e-5 makes 7.5e-5 of it, and
                # the scale several times as much.
                exact = _in_float64(before, feeds)
                for (a, b), c in zip(pairs, exact, strict=True):
                    wanted = np.asarray(c).astype(a.dtype)
                    assert difference(a, wanted, limit, limit) <= max(4, difference(b, wanted, limit, limit))
            if not dynamic:
                break


def _in_float64(model: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What onnx's reference evaluator gives for a model of float32 or float16 with float64 in their place."""
    proto, floats = onnx.load_from_string(model), (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        if value.type.tensor_type.elem_type in floats:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in proto.graph.initializer:
        if tensor.data_type in floats:
            wide = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))
    for attribute in (a for n in proto.graph.node if n.op_type == "Cast" for a in n.attribute):
        if attribute.name == "to" and attribute.i in floats:
            attribute.i = onnx.TensorProto.DOUBLE
    wide_feeds = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in feeds.items()}
    return list(ReferenceEvaluator(proto).run(None, wide_feeds))


def _feeds(run_in, size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(size)
    feeds = {}
    for value in run_in.get_inputs():
        dims = [d if isinstance(d, int) else size for d in value.shape]
        dtype = {"tensor(float16)": np.float16, "tensor(bool)": np.bool_}.get(value.type, np.float32)
        drawn = rng.random(dims) < 0.5 if dtype is np.bool_ else rng.uniform(-3, 3, dims)
        feeds[value.name] = drawn.astype(dtype)
    return feeds


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("ReduceMax(x, last)", lambda x: x.max(-1, keepdims=True)),
        ("ReduceMin(x, last)", lambda x: x.min(-1, keepdims=True)),
        ("ReduceSum(x, last)", lambda x: x.sum(-1, keepdims=True)),
        ("ReduceLogSumExp(x, last)", lambda x: np.logaddexp.reduce(x, -1, keepdims=True)),
        ("Softmax(x)", _softmax),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nan_and_infinities(call: str, expected, tmp_path) -> None:
    """Against numpy in float64: NaN is kept, infinities are what they are."""
    nan, inf = np.nan, np.inf
    specials = [[nan], [inf], [-inf], [inf, -inf], [nan, inf], [], [-inf] * 70]
    x = np.random.default_rng(0).standard_normal((len(specials), 70)).astype(np.float32)
    for k, special in enumerate(specials):
        x[k, 3 : 3 + len(special)] = special[:67]
    x[-1] = -inf
    found = fused("float[7, 70] x", "float[] y", f"y = {call}", constants="int64[1] last = {-1}", opset=21)
    assert len(found.rowwise) == 1
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = expected(x.astype(np.float64))
    assert difference(with_library(found, tmp_path).run(None, {"x": x})[0], wanted, 1e-5, 1e-5) <= 1
