"""Branches of one input whose sum is one convolution: which are joined, which are not, and that results stay."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite import rewrite
from tests.support.graphs import graph, hold, run

_W3, _W1 = (4, 4, 3, 3), (4, 4, 1, 1)
_CENTERED = "Conv<pads = [1, 1, 1, 1]>(x, w, b)"
_NORMALIZED = "BatchNormalization<epsilon = 0.1>(x, gamma, beta, mean, variance)"
_DTYPES = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def _sum(*terms: str) -> str:
    named = [f"t{k} = {term}" for k, term in enumerate(terms)]
    sums = [f"s{k} = Add({f's{k - 1}' if k > 1 else 't0'}, t{k})" for k in range(1, len(terms))]
    return "  ".join([*named, *sums[:-1], sums[-1].replace(f"s{len(sums)}", "y", 1)])


def _model(body: str, x: str = "n, 4, h, w", dtype: str = "float", **weights: tuple[int, ...]) -> ir.Model:
    """A graph from x to y around weights of these dims, a bias `b`, and the parameters of a BatchNormalization."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(dims) for name, dims in weights.items()}
    arrays |= {name: rng.standard_normal(4) for name in ("b", "gamma", "beta", "mean")}
    arrays["variance"] = rng.uniform(0.5, 2, 4)
    stored = (f"{dtype}[{','.join(map(str, array.shape))}] {name}" for name, array in arrays.items())
    rank = x.count(",") + 1
    made = graph(
        f"{dtype}[{x}] x, " + ", ".join(stored), f"{dtype}[{', '.join('abcde'[:rank])}] y", body
    )  # fmt: skip
    hold(made, arrays, _DTYPES[dtype])
    return made


def _convs(model: ir.Model) -> list[tuple[int, ...]]:
    convs = (one for one in model.graph if one.op_type == "Conv")
    return [tuple(conv.inputs[1].shape.numpy()) for conv in convs]  # type: ignore[union-attr]


def _sizes(x: str) -> list[int]:
    return [int({"n": "2", "h": "7", "w": "6", "d": "5"}.get(dim, dim)) for dim in x.split(", ")]


def _check(source: ir.Model, rewritten: ir.Model, x: str) -> None:
    given = np.random.default_rng(1).standard_normal(_sizes(x)).astype(np.float32)
    (expected,), (result,) = run(source, {"x": given}), run(rewritten, {"x": given})
    np.testing.assert_allclose(result, expected, atol=1e-5, rtol=1e-5)


_JOINED = [
    (_sum(_CENTERED, "Conv(x, v)"), "n, 4, h, w", {"w": _W3, "v": _W1}),
    (_sum("Conv(x, v, b)", _CENTERED), "n, 4, h, w", {"w": _W3, "v": _W1}),
    (
        _sum("Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w)", "Conv<strides = [2, 2]>(x, v)"),
        "n, 4, h, w", {"w": _W3, "v": _W1},
    ),
    (_sum(_CENTERED, _NORMALIZED), "n, 4, h, w", {"w": _W3}),
    (_sum(_NORMALIZED, "Conv<pads = [1, 1, 1, 1], group = 2>(x, w)"), "n, 4, h, w", {"w": (4, 2, 3, 3)}),
    (_sum("Conv(x, v, b)", _NORMALIZED, _CENTERED), "n, 4, h, w", {"w": _W3, "v": _W1}),
    (
        _sum("Conv<group = 4>(x, v)", _NORMALIZED, "Conv<pads = [1, 1, 1, 1], group = 4>(x, w, b)"),
        "2, 4, 7, 6", {"w": (4, 1, 3, 3), "v": (4, 1, 1, 1)},
    ),
    (
        _sum("Conv<pads = [2, 1, 2, 1]>(x, w)", "Conv<pads = [2, 0, 2, 0], dilations = [2, 1]>(x, v)"),
        "n, 4, h, w", {"w": (4, 4, 5, 3), "v": (4, 4, 3, 1)},
    ),
    (_sum("Conv<pads = [1, 1]>(x, w)", "Conv<pads = [0, 1]>(x, v)"), "n, 4, h", {"w": (4, 4, 3), "v": (4, 4, 2)}),
    (
        _sum("Conv<pads = [1, 0, 0, 1, 0, 0]>(x, w)", "Conv(x, v)"),
        "n, 4, d, h, w", {"w": (4, 4, 3, 1, 1), "v": (4, 4, 1, 1, 1)},
    ),
    (
        _sum("Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w)", "Conv<strides = [2, 2], pads = [1, 1, 0, 0]>(x, v)"),
        "2, 4, 7, 6", {"w": _W3, "v": (4, 4, 2, 2)},
    ),
    (_sum(_CENTERED, "Conv<pads = [1, 1, 1, 1]>(x, v)"), "n, 4, h, w", {"w": _W3, "v": _W3}),
    (f"t0 = {_CENTERED}  t1 = {_NORMALIZED}  y = Sub(t0, t1)", "n, 4, h, w", {"w": _W3}),
    (f"t0 = Conv(x, v, b)  t1 = {_CENTERED}  y = Sub(t0, t1)", "n, 4, h, w", {"w": _W3, "v": _W1}),
]  # fmt: skip


@pytest.mark.parametrize(("body", "x", "weights"), _JOINED)
def test_branches_are_one_convolution(body: str, x: str, weights: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    source = _model(body, x, **weights)
    rewritten = source.clone()
    rewrite(rewritten, tmp_path, leave_out={"channels_last"})
    assert _convs(rewritten) == [max(weights.values(), key=np.prod)]
    assert [one.op_type for one in rewritten.graph] == ["Conv"]
    _check(source, rewritten, x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_each_sum_is_rounded_once(dtype: str, tmp_path: Path) -> None:
    body = _sum("Conv(x, v, b)", _NORMALIZED, _CENTERED)
    source = _model(body, dtype=dtype, w=_W3, v=_W1)
    exact = _model(body, w=_W3, v=_W1)
    for name, one in exact.graph.initializers.items():  # what the model in 16 bits stores
        stored = source.graph.initializers[name].const_value
        assert stored is not None
        one.const_value = ir.Tensor(stored.numpy().astype(np.float32), name=name)
    for model in (source, exact):
        rewrite(model, tmp_path, leave_out={"channels_last"})
    (conv,), (expected,) = source.graph, exact.graph
    for stored, one in zip(conv.inputs[1:], expected.inputs[1:], strict=True):
        array = one.const_value.numpy()  # type: ignore[union-attr]
        bits = stored.const_value.numpy().astype(np.float32)  # type: ignore[union-attr]
        limit = 2.0**-10 if dtype == "float16" else 2.0**-7
        np.testing.assert_allclose(bits, array, rtol=limit, atol=limit)  # of terms above 1 as well


_APART = [
    (_sum("Conv<pads = [0, 2]>(x, w)", "Conv<pads = [1, 0]>(x, v)"), "n, 4, h", {"w": (4, 4, 3), "v": (4, 4, 2)}),
    (_sum("Conv<pads = [1, 1]>(x, w)", "Conv<pads = [2, 0]>(x, v)"), "n, 4, h", {"w": (4, 4, 3), "v": (4, 4, 3)}),
    (
        _sum("Conv<pads = [2, 2], dilations = [2]>(x, w)", "Conv<pads = [1, 1]>(x, v)"),
        "n, 4, h", {"w": (4, 4, 3), "v": (4, 4, 3)},
    ),
    (_sum(_CENTERED, "Conv<group = 2>(x, v)"), "n, 4, h, w", {"w": _W3, "v": (4, 2, 1, 1)}),
    ("r = Relu(x)  " + _sum(_CENTERED, "Conv(r, v)"), "n, 4, h, w", {"w": _W3, "v": _W1}),
    (f"c = {_CENTERED}  y = Add(c, c)", "n, 4, h, w", {"w": _W3}),
    (_sum(_CENTERED, "Conv(x, v)", "Sqrt(t0)"), "n, 4, h, w", {"w": _W3, "v": _W1}),
    (_sum("Conv(x, w)", "Conv(x, v)"), "n, 4, h, w", {"w": (1, 4, 1, 1), "v": _W1}),
    (_sum("Conv(x, w)", _NORMALIZED), "n, 4, h, w", {"w": (1, 4, 1, 1)}),
    (_sum('Conv<auto_pad = "SAME_UPPER">(x, w)', "Conv(x, v)"), "n, 4, h, w", {"w": (4, 4, 4, 4), "v": _W1}),
]  # fmt: skip


@pytest.mark.parametrize(("body", "x", "weights"), _APART)
def test_what_stays_apart(body: str, x: str, weights: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    source = _model(body, x, **weights)
    rewritten = source.clone()
    rewrite(rewritten, tmp_path, leave_out={"channels_last"})
    assert len(_convs(rewritten)) == len(_convs(source))
    _check(source, rewritten, x)


def test_sums_outside_of_float16_stay_apart(tmp_path: Path) -> None:
    source = _model(_sum("Conv(x, w)", "Conv(x, v)"), dtype="float16", w=_W1, v=_W1)
    for name in "wv":
        source.graph.initializers[name].const_value = ir.Tensor(np.full(_W1, 4e4, np.float16), name=name)
    rewrite(source, tmp_path)
    assert len(_convs(source)) == 2
