"""Nearest Resize by whole factors in pointwise regions: one kernel, and the numbers of the unchanged model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.models import fuse, outline
from onnxopt.codegen import kernels_json
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.graphs import graph, run

_TWICE = "float[4] s = {1, 1, 2, 2}"
_TWICE_NHWC = "float[4] s = {1, 2, 2, 1}"
_ASYMMETRIC = 'coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
_CONCAT = "a = Neg(x)  r = Resize(a, , s)  c = Concat<axis = {axis}>(r, z)  y = Tanh(c)"


def _model(body: str, constants: str, inputs: str = "float[N, 3, 5, 7] x", opset: int = 20) -> ir.Model:
    return graph(inputs, "float[] y", body, constants=constants, opset=opset)


# body, constants, inputs
_ONE_KERNEL = {
    "half pixel": ("a = Neg(x)  y = Resize(a, , s)", _TWICE, "float[N, 3, 5, 7] x"),
    "half pixel, ceil": ('a = Neg(x)  y = Resize<nearest_mode = "round_prefer_ceil">(a, , s)', _TWICE,
                         "float[N, 3, 5, 7] x"),
    "symmetric": ('a = Neg(x)  y = Resize<coordinate_transformation_mode = "half_pixel_symmetric">(a, , s)', _TWICE,
                  "float[N, 3, 5, 7] x"),
    "pytorch": ('a = Neg(x)  y = Resize<coordinate_transformation_mode = "pytorch_half_pixel">(a, , s)',
                "float[4] s = {1, 1, 3, 1}", "float[N, 3, 5, 7] x"),
    "asymmetric": (f"a = Neg(x)  y = Resize<{_ASYMMETRIC}>(a, , s)", "float[4] s = {1, 1, 3, 4}",
                   "float[N, 3, 5, 7] x"),
    "asymmetric, round": ('a = Neg(x)  y = Resize<coordinate_transformation_mode = "asymmetric">(a, , s)', _TWICE,
                          "float[N, 3, 5, 7] x"),
    "sizes": (f"a = Neg(x)  y = Resize<{_ASYMMETRIC}>(a, , , s)", "int64[4] s = {2, 3, 10, 21}",
              "float[2, 3, 5, 7] x"),
    "axes": (f"a = Neg(x)  y = Resize<{_ASYMMETRIC}, axes = [-1]>(a, , s)", "float[1] s = {2}", "float[N, 3, 5, 7] x"),
    "one axis of three": ("a = Neg(x)  y = Resize(a, , s)", "float[3] s = {1, 5, 1}", "float[N, 3, 7] x"),
    "nhwc": ("a = Neg(x)  y = Resize(a, , s)", _TWICE_NHWC, "float[N, 5, 7, 8] x"),
    "between transposes": (
        "t = Transpose<perm = [0, 3, 1, 2]>(x)  r = Resize(t, , s)  y = Transpose<perm = [0, 2, 3, 1]>(r)", _TWICE,
        "float[N, 5, 7, 8] x",
    ),
    "concat behind": (_CONCAT.format(axis=1), _TWICE, "float[N, 3, 5, 7] x, float[N, 2, 10, 14] z"),
    "concat behind, nhwc": (_CONCAT.format(axis=3), _TWICE_NHWC, "float[N, 5, 7, 8] x, float[N, 10, 14, 16] z"),
    "added to": ("r = Resize(x, , s)  y = Add(r, z)", _TWICE, "float[N, 3, 5, 7] x, float[N, 3, 10, 14] z"),
    "twice": ("r = Resize(x, , s)  q = Resize(r, , s)  y = Neg(q)", _TWICE, "float[N, 3, 2, 3] x"),
    "cut behind": ("r = Resize(x, , s)  c = Slice(r, b, e, k)  y = Neg(c)",
                   _TWICE + ", int64[1] b = {4}, int64[1] e = {8}, int64[1] k = {2}", "float[N, 3, 5, 7] x"),
}  # fmt: skip


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", _ONE_KERNEL)
def test_one_kernel_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    before = _model(*_ONE_KERNEL[name])
    session = _session(before, tmp_path)
    rng = np.random.default_rng(3)
    for batch in (1, 2, 3):
        feeds = {}
        for value in before.graph.inputs:
            dims = [d if isinstance(d, int) else batch for d in value.shape or ()]
            feeds[str(value.name)] = rng.uniform(-2, 2, dims).astype(np.float32)
        np.testing.assert_allclose(session.run(None, feeds)[0], run(before, feeds)[0], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "constants", "reason"),
    [
        ('y = Resize<mode = "linear">(a, , s)', _TWICE, "Resize has mode linear; only nearest is fused"),
        ("y = Resize(a, , s)", "float[4] s = {1, 1, 1.5, 2}", "Resize has a factor of 1.5; only whole factors"),
        ("y = Resize(a, , s)", "float[4] s = {1, 1, 0.5, 1}", "Resize has a factor of 0.5; only whole factors"),
        ('y = Resize<nearest_mode = "ceil">(a, , s)', _TWICE, "by 2 with half_pixel and ceil does not repeat"),
        ('y = Resize<nearest_mode = "floor">(a, , s)', _TWICE, "by 2 with half_pixel and floor does not repeat"),
        ('y = Resize<coordinate_transformation_mode = "asymmetric">(a, , s)', "float[4] s = {1, 1, 3, 1}",
         "by 3 with asymmetric and round_prefer_floor does not repeat"),
        ('y = Resize<coordinate_transformation_mode = "align_corners">(a, , s)', _TWICE, "with align_corners and"),
        ("y = Resize(a, , , n)  n = Concat<axis = 0>(d, d)  d = Shape<start = 2>(z)", "", "sizes `n` are computed"),
    ],
)  # fmt: skip
def test_what_stays_apart(body: str, constants: str, reason: str) -> None:
    model = _model("a = Neg(x)  " + body, constants, "float[2, 3, 5, 7] x, float[1, 1, 2, 3] z")
    ir.passes.common.TopologicalSortPass()(model)
    plan = fuse(model)
    assert not any(n.op_type == "Resize" for r in plan.regions for n in r.nodes)
    assert any(reason in r.reason for r in plan.refusals), [r.reason for r in plan.refusals]


# body, constants, inputs: all sizes are symbols
_SYMBOLIC = {
    "alone": ("a = Neg(x)  y = Resize(a, , s)", _TWICE, "float[N, 3, H, W] x"),
    "by three, one axis": (f"a = Neg(x)  y = Resize<{_ASYMMETRIC}>(a, , s)", "float[4] s = {1, 1, 3, 1}",
                           "float[N, 3, H, W] x"),
    "concat of other names": (_CONCAT.format(axis=1), _TWICE, "float[N, 3, H, W] x, float[N, 2, P, Q] z"),
    "concat, nhwc": (_CONCAT.format(axis=3), _TWICE_NHWC, "float[N, H, W, 8] x, float[N, P, Q, 16] z"),
    "twice": ("r = Resize(x, , s)  q = Resize(r, , s)  y = Neg(q)", _TWICE, "float[N, 3, H, W] x"),
    "of a pool": ("p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)  r = Resize(p, , s)  "
                  "c = Concat<axis = 1>(r, z)  y = Neg(c)", _TWICE, "float[N, 3, H, W] x, float[N, 2, P, Q] z"),
    "added to": ("r = Resize(x, , s)  t = Neg(r)  y = Add(r, t)", _TWICE, "float[N, 3, H, W] x"),
}  # fmt: skip


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", _SYMBOLIC)
def test_symbolic_sizes(name: str, tmp_path: Path) -> None:
    before = _model(*_SYMBOLIC[name])
    session = _session(before, tmp_path)
    rng = np.random.default_rng(3)
    for n, h, w in ((1, 2, 4), (2, 6, 4), (3, 10, 2)):
        times = 1 if name == "of a pool" else 2
        sizes = {"N": n, "H": h, "W": w, "P": times * h, "Q": times * w}
        feeds = {
            str(value.name): rng.uniform(-2, 2, [sizes.get(str(d), d) for d in value.shape or ()]).astype(np.float32)
            for value in before.graph.inputs
        }
        np.testing.assert_allclose(session.run(None, feeds)[0], run(before, feeds)[0], rtol=2e-6, atol=1e-6)


@pytest.mark.usefixtures("library")
def test_parts_of_different_heights_are_refused_at_the_run(tmp_path: Path) -> None:
    session = _session(_model(*_SYMBOLIC["concat of other names"]), tmp_path)
    x, z = np.ones((1, 3, 4, 5), np.float32), np.ones((1, 2, 9, 10), np.float32)
    with pytest.raises(Exception, match=r"\[1, 2, 9, 10\]"):
        session.run(None, {"x": x, "z": z})


def _session(before: ir.Model, folder: Path) -> ort.InferenceSession:
    """The model with its one kernel on the CPU too."""
    after = before.clone()
    (kernel,) = outline(after, fuse(after))
    assert "Resize" in kernel.ops
    assert not kernel.cpu  # ONNX Runtime's own kernel copies rows
    kernel.program.verify()
    library = artifact.copy_library(folder)
    (folder / "kernels.json").write_text(kernels_json.to_json([dataclasses.replace(kernel, cpu=True)], None))
    return artifact.session(ir.to_proto(after), library)


def test_work_in_front_that_costs_more_than_it_saves_is_not_repeated() -> None:
    plan = fuse(_model("a = Erf(x)  y = Resize(a, , s)", _TWICE))
    assert plan.regions == ()
    assert any("Erf would be recomputed" in r.reason for r in plan.refusals)
