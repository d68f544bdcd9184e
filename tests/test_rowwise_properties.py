"""Random compositions of reductions and elementwise operators: the CPU kernels against the model as it was."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rowwise_models import difference, fused, session, with_library

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


@settings(max_examples=60, deadline=None)
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
