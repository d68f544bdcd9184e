"""Sizes that are whole multiples wherever a graph runs: what states it, and that padding to whole windows goes then."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import sympy
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from onnxopt.graph import normalize
from onnxopt.graph.shapes import infer
from onnxopt.graph.shapes.dims import dim_text, floor, parse_dim
from onnxopt.graph.shapes.multiples import multiples_of
from onnxopt.graph.sizes.multiple_sizes import multiples
from onnxopt.pipeline import flow
from onnxopt.pipeline.options import Options
from tests.support.fusing import compile_nothing
from tests.support.graphs import graph, run, value

REFUSED = (ort.Fail, ort.InvalidArgument, ort.RuntimeException)
N, H, W = (parse_dim(name) for name in ("n", "height", "width"))
h, w = (floor(size / sympy.Integer(4)) for size in (H, W))  # of patches


def up(size: sympy.Expr, times: int) -> sympy.Expr:
    return floor((size + times - 1) / sympy.Integer(times))


def down(size: sympy.Expr, times: int) -> sympy.Expr:
    return floor(size / sympy.Integer(times))


@pytest.mark.parametrize(
    ("zero", "stated"),
    [
        (N * 16 * up(h, 4) * up(w, 4) - N * h * w, {h: 4, w: 4}),
        (h * w - 16 * down(h, 4) * down(w, 4), {h: 4, w: 4}),
        (28 * up(h, 7) * up(w, 4) - h * w, {h: 7, w: 4}),
        (N * 4 * up(h, 4) * w - N * h * w, {h: 4}),
        (16 * up(h, 4) * down(w, 4) - h * w, {}),  # one may be too large and the other one too small
        (8 * up(h, 4) * up(w, 4) - h * w, {}),
        (16 * up(h, 4) * up(w, 4) - h * w - h, {}),
        (h * w - 16 * N, {}),
        (4 * up(H, 4) - H, {}),  # dims of inputs are named as they are declared
    ],
)
def test_equal_products_have_equal_factors(zero: sympy.Expr, stated: dict[sympy.Expr, int]) -> None:
    assert multiples(zero, set()) == stated


PATCHES = """
    c = Conv<kernel_shape = [4, 4], strides = [4, 4]>(x, kernel)
    t = Transpose<perm = [0, 2, 3, 1]>(c)
    s = Shape(t) n1 = Slice(s, zero, one) h1 = Slice(s, one, two) w1 = Slice(s, two, three)
"""
# Pads t of h1 x w1 patches to whole windows, makes the windows and undoes that.
WINDOWS = """
    hm = Mod(h1, window) hs = Sub(window, hm) hp = Mod(hs, window)
    wm = Mod(w1, window) ws = Sub(window, wm) wp = Mod(ws, window)
    pads = Concat<axis = 0>(zero, zero, zero, zero, zero, hp, wp, zero)
    p = Pad(t, pads)
    ps = Shape(p) ph = Slice(ps, one, two) pw = Slice(ps, two, three) hn = Div(ph, window) wn = Div(pw, window)
    parts = Concat<axis = 0>(n1, hn, window, wn, window, two)
    r = Reshape(p, parts)
    o = Transpose<perm = [0, 1, 3, 2, 4, 5]>(r)
    q = Relu(o)
    b = Transpose<perm = [0, 1, 3, 2, 4, 5]>(q)
    whole = Concat<axis = 0>(n1, ph, pw, two)
    u = Reshape(b, whole)
"""
UNPADDED = "l1 = Mul(h1, w1) flat = Concat<axis = 0>(n1, l1, two) y = Reshape(u, flat)"
HALVED = """
    image = Concat<axis = 0>(n1, h1, w1, two) i = Reshape(y, image)
    begin = Concat<axis = 0>(zero, zero) end = Concat<axis = 0>(last, last) a = Concat<axis = 0>(one, two)
    steps = Concat<axis = 0>(two, two) t2 = Slice(i, begin, end, a, steps)
    ha = Add(h1, one) h2 = Div(ha, two) wa = Add(w1, one) w2 = Div(wa, two)
"""
CUT = (
    "e = Concat<axis = 0>(h1, w1) a = Concat<axis = 0>(one, two) z = Concat<axis = 0>(zero, zero) y = Slice(u, z, e, a)"
)


def windows(end: str) -> ir.Model:
    constants = (
        "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] window = {4}, "
    )
    constants += "int64[1] last = {2147483647}"
    kernel = np.random.default_rng(0).standard_normal((2, 1, 4, 4)).astype(np.float32)
    numbers = ", ".join(repr(float(k)) for k in kernel.ravel())
    constants += f", float[2, 1, 4, 4] kernel = {{{numbers}}}"
    return graph("float[n, 1, height, width] x", "float[] y", f"{PATCHES} {WINDOWS} {end}", constants=constants)


def image(height: int, width: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((2, 1, height, width)).astype(np.float32)}


def test_padding_that_is_cut_nowhere_is_none() -> None:
    model = windows(UNPADDED)
    after = normalize.normalize(model.clone()).model
    assert [dim_text(size) for size in multiples_of(after.graph).values()].count("4*floor(height/16)") == 1
    assert not any(node.op_type in ("Pad", "Mod") for node in after.graph)
    convolved = next(node.outputs[0] for node in after.graph if node.op_type == "Conv")
    dims = infer.infer(after).dims(convolved)
    assert [dim_text(dim) for dim in dims or ()] == ["n", 2, "4*floor(height/16)", "4*floor(width/16)"]
    for size in ((16, 16), (32, 48), (35, 19)):
        np.testing.assert_array_equal(run(after, image(*size))[0], run(model, image(*size))[0])
    for size in ((20, 16), (16, 12)):
        for one in (model, after):
            with pytest.raises(REFUSED):
                run(one, image(*size))


def test_padding_that_is_cut_off_stays() -> None:
    model = windows(CUT)
    after = normalize.normalize(model.clone()).model
    assert not multiples_of(after.graph)
    assert any(node.op_type == "Pad" for node in after.graph)
    for size in ((16, 16), (20, 12)):
        np.testing.assert_array_equal(run(after, image(*size))[0], run(model, image(*size))[0])


def test_a_multiple_of_a_part_of_a_multiple() -> None:
    names = re.findall(r"(\w+) = ", f"{WINDOWS} {UNPADDED}")
    second = re.sub(r"\b\w+\b", lambda m: m[0] + "2" if m[0] in (*names, "t", "h1", "w1") else m[0], WINDOWS + UNPADDED)
    second = second.replace("h12", "h2").replace("w12", "w2").replace("perm2", "perm").replace("axis2", "axis")
    model = windows(f"{UNPADDED} {HALVED} {second}")
    model.graph.outputs[0] = value(model, "y2")
    after = normalize.normalize(model.clone()).model
    assert [dim_text(size) for size in multiples_of(after.graph).values()].count("8*floor(height/32)") == 1
    assert not any(node.op_type in ("Pad", "Mod") for node in after.graph)
    for size in ((32, 32), (64, 33)):
        np.testing.assert_array_equal(run(after, image(*size))[0], run(model, image(*size))[0])
    for one in (model, after):
        with pytest.raises(REFUSED):
            run(one, image(16, 32))


def test_lower_precision_hands_multiples_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Pads that prove them are gone by then. With them, one kernel makes the windows and undoes that."""
    compile_nothing(monkeypatch)
    ir.save(windows(UNPADDED), tmp_path / "model.onnx")
    made = flow.optimize(tmp_path / "model.onnx", tmp_path / "artifact", Options(archs=("sm_90",), precision="float16"))
    bodies = [[node.op_type for node in body] for body in ir.load(made.path / "model.onnx").functions.values()]
    assert any({"Relu", "Transpose", "Reshape"} <= set(body) for body in bodies)
