"""Pairs of stages that become one: which ones do, which do not, and what the merged ones compute on the CPU."""

from __future__ import annotations

import emulated
import numpy as np
import onnx_ir as ir
import pytest
from graphs import graph

from onnxopt import generate, outline
from onnxopt.fuse import fuse
from onnxopt.regions import Kernel
from onnxopt.row_merging import MergedStage, merged
from onnxopt.row_program import RowProgram

X, G, Y = "float[8, 40] x", "float[40] g", "float[8, 40] y"
AXIS = "int64[1] last = {-1}, float two = {2}, float eps = {1e-5}"
CASES = {
    "layer norm": (f"{X}, {G}", "y = LayerNormalization<axis=-1>(x, g)", ["Moments"]),
    "softmax": (X, "y = Softmax(x)", ["Exponentials"]),
    "log softmax": (X, "y = LogSoftmax(x)", ["Exponentials"]),
    "softmax of a scaled sum": (f"{X}, {G}", "t = Mul(x, two) a = Add(t, g) y = Softmax(a)", ["Exponentials"]),
    "variance spelled out": (
        f"{X}, {G}",
        "m = ReduceMean(x, last) d = Sub(x, m) p = Mul(d, d) v = ReduceMean(p, last) y = Div(d, v)",
        ["Moments"],
    ),
    "mean of squares": (X, "p = Mul(x, x) m = ReduceMean(p, last) y = Div(x, m)", [0]),
    "squares around half the mean": (
        X, "m = ReduceMean(x, last) h = Mul(m, eps) d = Sub(x, h) p = Mul(d, d) v = ReduceSum(p, last) y = Div(x, v)",
        [0, 1],
    ),
    "squares of others than were summed": (
        f"{X}, {G}",
        "a = Mul(x, g) m = ReduceMean(a, last) d = Sub(x, m) p = Mul(d, d) v = ReduceSum(p, last) y = Div(x, v)", [0, 1],
    ),
    "a guarded maximum": (X, "s = ReduceLogSumExp(x, last) y = Sub(x, s)", [0, 1]),
    "exponentials of other elements": (
        f"{X}, {G}", "a = Mul(x, g) m = ReduceMax(a, last) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) y = Div(x, s)",
        [0, 1],
    ),
    "a mean of softmax": (
        X, "s = Softmax(x) c = LayerNormalization<axis=-1>(s, g) y = Add(c, x)", ["Exponentials", "Moments"],
    ),
}  # fmt: skip


def _kernel(inputs: str, body: str, outputs: str = Y, constants: str = AXIS) -> Kernel:
    more = "" if " g" in inputs or " g)" not in body else f", {G}"
    model = graph(inputs + more, outputs, body, constants=constants)
    (kernel,) = outline.outline(model, fuse(model))
    assert isinstance(kernel.program, RowProgram)
    return kernel


@pytest.mark.parametrize("case", CASES)
def test_which_stages_are_merged(case: str) -> None:
    inputs, body, expected = CASES[case]
    found = merged(_kernel(inputs, body).program)  # type: ignore[arg-type]
    assert [s.kind if isinstance(s, MergedStage) else s for s in found] == expected


def test_doubles_stay_apart() -> None:
    kernel = _kernel("double[8, 40] x", "y = Softmax(x)", "double[8, 40] y")
    assert merged(kernel.program) == (0, 1)  # type: ignore[arg-type]
