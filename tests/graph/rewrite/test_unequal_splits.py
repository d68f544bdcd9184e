"""Splits into parts of different sizes become Slices where kernels read the parts; those of constants are folded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse
from onnxopt.graph.normalize import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.unequal_splits import slice_parts
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, hold, run

SIZES = "int64[2] sizes = {1, 5}, int64[1] first = {1}, int64[2] equal = {3, 3}, int64[2] flat = {-1, 8}"
ROTATED = "a, b = Split<axis = -2>(x, sizes) c = Mul(b, b) y = Concat<axis = -2>(a, c)"


def _ops(model: ir.Model) -> Counter[str]:
    return Counter(n.op_type for n in model.graph if n.op_type != "Constant")


def _applied(model: ir.Model) -> bool:
    infer(model).write()
    return bool(slice_parts(model.graph))


@pytest.mark.parametrize("body", [ROTATED, "a, b = Split<axis = 1>(x, sizes) r = Reshape(b, flat) y = Neg(r)"])
def test_parts_that_kernels_read(body: str, tmp_path: Path) -> None:
    source = graph("float[S, 6, 8] x", "float[] y", body, constants=SIZES)
    found = source.clone()
    rewrite(found, tmp_path)
    assert _ops(found)["Split"] == 0
    assert _ops(found)["Slice"] == (2 if "a," in body and "Concat" in body else 1)
    x = np.random.default_rng(0).standard_normal((3, 6, 8)).astype(np.float32)
    np.testing.assert_array_equal(run(found, {"x": x})[0], run(source, {"x": x})[0])


def test_they_are_one_kernel(tmp_path: Path) -> None:
    found = graph("float[S, 6, 8] x", "float[] y", ROTATED, constants=SIZES)
    rewrite(found, tmp_path)
    (region,) = fuse(found).regions
    assert Counter(n.op_type for n in region.nodes) == {"Slice": 2, "Mul": 1, "Concat": 1}


@pytest.mark.parametrize(
    ("inputs", "body"),
    [
        ("float[S, 6, 8] x", ROTATED.replace("sizes", "equal")),
        ("float[S, 6, 8] x, float[8, 8] w",
         "a, b = Split<axis = 1>(x, sizes) c = MatMul(b, w) y = Concat<axis = 1>(a, c)"),
        ("int64[S, 6, 8] x", ROTATED),
        ("float[S, 6, 8] x", "a, y = Split<axis = 1>(x, sizes) b = Neg(a)"),
        ("float[S, N, 8] x, int64[2] own", ROTATED.replace("sizes", "own")),
    ],
    ids=["equal parts", "read by a product", "integers", "an output of the graph", "unknown sizes"],
)  # fmt: skip
def test_splits_that_stay(inputs: str, body: str) -> None:
    model = graph(inputs, f"{inputs.split('[')[0]}[] y", body, constants=SIZES)
    assert not _applied(model)
    assert _ops(model)["Split"] == 1


def _biased(split: str) -> ir.Model:
    body = f"{split} c = Add(x, a) d = Mul(c, b) y = Sub(d, a)"
    model = graph(
        "float[S, 3] x, float[S, 6] v, float[6] w", "float[] y", body, constants=f"{SIZES}, int64[2] more = {{4, 4}}"
    )
    hold(model, {"w": np.arange(6)}, np.float32)
    return model


@pytest.mark.parametrize("split", ["a, b = Split<axis = 0, num_outputs = 2>(w)", "a, b = Split(w, equal)"])
def test_parts_of_a_constant(split: str) -> None:
    source = _biased(split)
    found = normalize(source.clone()).model
    assert _ops(found) == {"Add": 2, "Mul": 1}  # Sub of a constant is Add
    feeds = {"x": np.ones((2, 3), np.float32), "v": np.ones((2, 6), np.float32)}
    np.testing.assert_array_equal(run(found, feeds)[0], run(source, feeds)[0])


def test_a_constant_that_others_read_is_not_stored_twice() -> None:
    model = _biased("a, b = Split(w, equal) z = Mul(v, w)")
    model.graph.outputs.append(next(n for n in model.graph if n.name == "z").outputs[0])
    assert _ops(normalize(model).model)["Split"] == 1


def test_sizes_that_do_not_fit_stay_as_they_are() -> None:
    assert _ops(normalize(_biased("a, b = Split(w, more)")).model)["Split"] == 1


def test_weights_of_single_experts_stay_in_one_tensor() -> None:
    """A kernel reads them there."""
    model = _biased("a, a2, b, b2, c2, d2 = Split<axis = 0, num_outputs = 6>(w)")
    assert _ops(normalize(model).model)["Split"] == 1


@pytest.mark.parametrize(
    ("split", "gpu", "splits"),
    [("<axis = 1>(x, sizes)", True, 0), ("<axis = -2>(x, equal)", True, 0), ("<axis = 1>(x, sizes)", False, 1),
     ("<axis = 0, num_outputs = 2>(x)", True, 1)],
)  # fmt: skip
def test_rows_that_products_read(split: str, gpu: bool, splits: int, tmp_path: Path) -> None:
    body = f"a, b = Split{split} c = MatMul(a, v) d = MatMul(b, w) e = Relu(c) f = Abs(d) y = Concat<axis = 1>(e, f)"
    source = graph("float[2, 6, 8] x, float[8, 8] v, float[8, 8] w", "float[] y", body, constants=SIZES)
    rng = np.random.default_rng(0)
    hold(source, {name: rng.standard_normal((8, 8)) for name in "vw"}, np.float32)
    found = source.clone()
    rewrite(found, tmp_path, gpu=gpu)
    assert _ops(found)["Split"] == splits
    x = rng.standard_normal((2, 6, 8)).astype(np.float32)
    np.testing.assert_allclose(run(found, {"x": x})[0], run(source, {"x": x})[0], rtol=1e-6, atol=1e-6)


def test_parts_that_concats_join_with_other_rows(tmp_path: Path) -> None:
    body = (
        "a, b = Split<axis = -1, num_outputs = 2>(x) c, d = Split<axis = -1, num_outputs = 2>(z) "
        "e = Softmax(a) f = Softmax(c) y = Concat<axis = 1>(e, f) g = Concat<axis = 1>(b, d)"
    )
    source = graph("float[2, 6, 64] x, float[2, 3, 64] z", "float[] y, float[] g", body)
    found = source.clone()
    rewrite(found, tmp_path)
    assert _ops(found) == {"Slice": 4, "Softmax": 2, "Concat": 2}
    (region,) = fuse(found).regions
    assert len(region.nodes) == len(found.graph) and len(region.outputs) == 2
