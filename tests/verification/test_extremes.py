"""Inputs far from typical ones, which ranges are measured with too."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.graph import normalize, traits
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.lowering import parts, ranges
from onnxopt.verification.reference import Reference
from onnxopt.verification.sampling import edges
from onnxopt.verification.sampling.extremes import extremes, refused_empty
from onnxopt.verification.sampling.user_data import UserData
from tests.support.graphs import graph

_ROWS = 300  # of the table of positions: no longer inputs are accepted
_TABLE = "float[300, 4] t = {" + ", ".join(["0.5"] * 4 * _ROWS) + "}, int64 i0 = {0}, int64 i1 = {1}, int64[1] v0 = {0}"
_BODY = (
    "sh = Shape<start = 1, end = 2>(x) n = Squeeze(sh) r = Range(i0, n, i1) e = Gather(t, r) h = Add(x, e) "
    "s = Exp(h) y = Relu(s)"
)


def _reference(tmp_path: Path, data: list[UserData], body: str = _BODY) -> tuple[ir.Model, Reference]:
    model = graph("float[B, N, 4] x", "float[B, N, 4] y", body, constants=_TABLE)
    onnx.save(ir.to_proto(model), tmp_path / "model.onnx")
    file, coverage = ModelFile(tmp_path / "model.onnx", traits.of(model)), Coverage(data=data, seconds=0.2)
    reference = Reference(file, "CPUExecutionProvider", coverage, folder=tmp_path)
    return normalize.normalize(model).model, reference


def test_zeros_and_the_longest_are_tried(tmp_path: Path) -> None:
    model, reference = _reference(tmp_path, [])
    found = [feeds["x"] for feeds in extremes(model, reference, {})]
    assert not found[0].any()
    assert max(array.shape[1] for array in found) == 257  # the next length is 513


def test_empty_axes_are_tried(tmp_path: Path) -> None:
    model, reference = _reference(tmp_path, [], "h = Exp(x) y = Relu(h)")
    shapes = [feeds["x"].shape for feeds in extremes(model, reference, {})]
    assert {(0, 7, 4), (1, 0, 4)} <= {(shape[0], 7 if shape[1] else 0, 4) for shape in shapes}
    (tmp_path / "ranges").mkdir()
    assert (
        ranges.measure(model, [], ir.DataType.FLOAT16, tmp_path / "ranges", extremes(model, reference, {}))["h"].lowest
        == 0
    )


def test_empty_axes_that_end_the_process_are_not_tried(tmp_path: Path) -> None:
    model, reference = _reference(tmp_path, [], 'e = Einsum<equation = "bnc->bnc">(x) h = Exp(e) y = Relu(h)')
    assert all(feeds["x"].size for feeds in extremes(model, reference, {}))


def test_the_users_inputs_are_followed_by_zeros_alone(tmp_path: Path) -> None:
    mine = {"x": np.ones((2, 5, 4), np.float32)}
    model, reference = _reference(tmp_path, [UserData("mine", mine, {"B": 2, "N": 5})])
    (found,) = extremes(model, reference, {})
    assert found["x"].shape == (2, 5, 4)
    assert not found["x"].any()


def test_extremes_widen_bounds_and_cost_nothing(tmp_path: Path) -> None:
    model, _ = _reference(tmp_path, [])
    typical, far = {"x": np.full((1, 3, 4), 1.5, np.float32)}, {"x": np.full((1, 9, 4), 9.1, np.float32)}
    alone = ranges.measure(model, [typical], ir.DataType.FLOAT16, tmp_path)["h"]
    both = ranges.measure(model, [typical], ir.DataType.FLOAT16, tmp_path, [far])["h"]
    assert (alone.greatest, both.greatest) == (2.0, np.float32(9.6))
    assert both.loss == alone.loss == 0
    assert (both.typical, both.smallest) == (alone.typical, 2.0)
    assert parts.bytes_of(model, far) == 3 * 4 * 9 * 4 + 4 * 9 * 4


def test_a_run_of_no_elements_that_a_reshape_refuses_has_no_ranges(tmp_path: Path) -> None:
    model = graph("float[n, 4] x", "float[n, 2, 2] y", "y = Reshape (x, to)", constants="int64[3] to = {0, 2, -1}")
    typical, empty = {"x": np.full((3, 4), 1.5, np.float32)}, {"x": np.zeros((0, 4), np.float32)}
    measured = ranges.measure(model, [typical], ir.DataType.FLOAT16, tmp_path, [empty])
    assert measured["y"] == ranges.measure(model, [typical], ir.DataType.FLOAT16, tmp_path)["y"]
    with pytest.raises(RunError):
        ranges.measure(model, [{"x": np.zeros((3, 5), np.float32)}], ir.DataType.FLOAT16, tmp_path)


# Paddle's class token: repeated to at least one image, where the Reshape refuses none. Normalization writes the Reshape
# with -1 for the images, which takes none.
_TOKEN = """
    shape = Shape (x) two = Slice (shape, none, i2) flat = Concat <axis = 0> (two, last) r = Reshape (x, flat)
    s = Transpose <perm = [0, 2, 1]> (r)
    n = Slice (shape, none, i1) some = Concat <axis = 0> (n, last, last) wide = Max (some, whole)
    e = Expand (token, wide) c = Concat <axis = 1> (e, s) a = Add (c, positions) m = MatMul (a, w) y = Add (m, bias)
"""
_TOKENS = f"""int64[1] none = {{0}}, int64[1] i1 = {{1}}, int64[1] i2 = {{2}}, int64[1] last = {{-1}},
    int64[3] whole = {{1, 1, 4}}, float[1, 1, 4] token = {{1, 2, 3, 4}}, float[4] bias = {{1, 2, 3, 4}},
    float[1, 5, 4] positions = {{{", ".join(["0.25"] * 20)}}}, float[4, 4] w = {{{", ".join(["0.5"] * 16)}}}"""


def test_sizes_of_0_that_the_users_model_refuses_are_not_tried_in_16_bits(tmp_path: Path) -> None:
    model = graph("float[B, 4, 2, 2] x", "float[B, 5, 4] y", _TOKEN, constants=_TOKENS)
    onnx.save(ir.to_proto(model), tmp_path / "model.onnx")
    artifact = onnxopt.optimize(tmp_path / "model.onnx", tmp_path / "artifact", archs=(), precision="float16")
    assert (artifact.manifest.verify.status, artifact.manifest.left_out) == ("passed", ())


def test_sizes_of_0_that_are_taken_are_tried(tmp_path: Path) -> None:
    _, reference = _reference(tmp_path, [], "h = Exp(x) y = Relu(h)")
    assert refused_empty(reference) == frozenset()
    sizes = {"B": 2, "N": 3}
    assert [s["B"] for s in edges.empty_sizes(reference.traits, sizes)] == [0, 2]
    refusing = dataclasses.replace(reference.traits, never_empty=frozenset({frozenset({"B"})}))
    assert [s["B"] for s in edges.empty_sizes(refusing, sizes)] == [2]
