"""Masks of a window and of other conditions: the kernel computes the window, and reads what is left of the mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.models import fuse
from onnxopt.graph.rewrite import rewrite
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from onnxopt.program.flash_attention import FlashAttention
from tests.support.graphs import graph

_INDICES = """
    dims = Shape <start = 1, end = 2> (x)
    count = Squeeze (dims, first)
    key = Range (zero, count, one)
    query = Unsqueeze (key, last)
    apart = Sub (query, key)
    causal = GreaterOrEqual (apart, zero)
    distance = Abs (apart)
    local = LessOrEqual (distance, nine)
    kept = Unsqueeze (mask, middle)
"""
_ATTENTION = """
    t = Reshape (x, split)
    q = Transpose <perm = [0, 2, 1, 3]> (t)
    k = Transpose <perm = [0, 2, 3, 1]> (t)
    s = MatMul (q, k)
    f = Mul (s, scale)
    {masked}
    w = Softmax <axis = -1> (a)
    o = MatMul (w, q)
    u = Transpose <perm = [0, 2, 1, 3]> (o)
    y = Reshape (u, joined)
"""
# Of float16, the bits: 0.125, 0, -65504 and -inf.
_CONSTANTS = """int64[4] split = {0, 0, 2, 64}, int64[3] joined = {0, 0, 128}, int64 zero = {0}, int64 one = {1},
    int64[1] first = {0}, int64[1] last = {-1}, int64[2] middle = {1, 2}, int64 nine = {9}, bool[1] all = {1},
    float16 scale = {12288}, float16 none = {0}, float16 low = {64511}, float16 infinite = {64512},
    float wide = {-3e38}, float little = {-65504}, float nothing = {0}"""
_NAMES = {"causal": (None, 0), "local": (9, 9)}


def model_of(masked: str, tokens: object, shared: bool = False) -> ir.Model:
    """Attention [2, tokens, 128] of two heads. masked: from scores f to a. shared: the heads share the bias."""
    bias = f"[2, 1, 1, {tokens}]" if shared else f"[1, 2, 1, {tokens}]"
    inputs = f"float16[2, {tokens}, 128] x, bool[2, {tokens}] mask, float16{bias} bias"
    return graph(
        inputs, f"float16[2, {tokens}, 128] y", _INDICES + _ATTENTION.format(masked=masked), constants=_CONSTANTS
    )


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {value.name: feeds[value.name] for value in session.get_inputs()}
    return np.asarray(session.run(None, given)[0])


def _feeds(tokens: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(tokens)
    mask = np.ones((2, tokens), np.bool_)
    mask[0, max(tokens - 5, 1) :] = False  # behind the sequence, and fewer than a window, so that a query sees some key
    x, bias = (random.standard_normal(s).astype(np.float16) for s in ((2, tokens, 128), (1, 2, 1, tokens)))
    return {"x": x, "mask": mask, "bias": bias}


@pytest.mark.parametrize("tokens", [40, "S"])
@pytest.mark.parametrize("window", _NAMES)
@pytest.mark.parametrize(
    "masked",
    [
        "g = And ({window}, kept) m = Where (g, none, low) a = Add (f, m)",
        "h = And (all, {window}) g = And (kept, h) m = Where (g, none, infinite) a = Add (f, m)",
        "g = And ({window}, kept) a = Where (g, f, low)",
        "n = Not ({window}) p = Not (kept) g = Or (n, p) a = Where (g, low, f)",
        "n = Not (kept) i = Where ({window}, none, low) m = Where (n, low, i) a = Add (f, m)",
        "g = And ({window}, kept) m = Where (g, nothing, wide) "
        "e = Cast <to = 1> (f) d = Add (e, m) a = Cast <to = 10> (d)",
        "g = And ({window}, kept) m = Where (g, nothing, wide) l = Max (m, little) n = Cast <to = 10> (l) "
        "a = Add (f, n)",
        "i = Where ({window}, none, low) b = Add (bias, i) a = Add (f, b)",
        "i = Where ({window}, none, low) b = Add (f, bias) a = Add (b, i)",
    ],
)
def test_a_window_beside_other_conditions(masked: str, window: str, tokens: object, tmp_path: Path) -> None:
    text = masked.format(window=window)
    if window == "local" and "Not (local)" in text:
        pytest.skip("what lies outside of two limits is not two limits")
    model = model_of(text, tokens)
    rewrite(model, tmp_path)
    (region,) = (r for r in fuse(model).regions if r.kind is FLASH_ATTENTION)
    assert isinstance(region.meaning, FlashAttention)
    assert (region.meaning.before, region.meaning.after) == _NAMES[window]
    left = region.inputs[region.meaning.bias or 0]
    assert [str(d) for d in left.shape or ()][-2:] == ["1", str(tokens)]
    for count in (40,) if tokens == 40 else (40, 1, 23):
        feeds = _feeds(count)
        np.testing.assert_allclose(run(model, feeds), run(model_of(text, tokens), feeds), atol=4e-3)


def test_sums_of_float32_masks_stay_finite(tmp_path: Path) -> None:
    """-3e38 is -inf in 16 bits, and a row of such keys would be NaN."""
    text = """
        n = Not (kept) h = Cast <to = 1> (n) m = Mul (h, wide) i = Where (causal, nothing, wide)
        e = Cast <to = 1> (f) b = Add (e, m) d = Add (b, i) a = Cast <to = 10> (d)
    """
    model = model_of(text, 40)
    rewrite(model, tmp_path)
    (region,) = (r for r in fuse(model).regions if r.kind is FLASH_ATTENTION)
    assert isinstance(region.meaning, FlashAttention)
    assert (region.meaning.after, region.meaning.hidden) == (0, "once")
    feeds = _feeds(40)
    np.testing.assert_allclose(run(model, feeds), run(model_of(text, 40), feeds), atol=4e-3)
    feeds["mask"][:] = False
    assert np.isfinite(run(model, feeds)).all()


_BOTH = "b = Where (causal, f, wide) m = Where (kept, nothing, wide) d = Add (b, m) a = Cast <to = 10> (d)"
_CAST = """
    q = Cast <to = 1> (h)
    l = Cast <to = 1> (g)
    k = Transpose <perm = [0, 1, 3, 2]> (l)
"""


def _cast(tokens: object, changed: tuple[str, str] = ("", "")) -> ir.Model:
    """As GPT-Neo does: the product in float32, a mask in front of another."""
    body = _ATTENTION.format(masked=_BOTH).replace("q = Transpose", "h = Transpose").replace("(w, q)", "(w, g)")
    body = body.replace("k = Transpose <perm = [0, 2, 3, 1]>", "g = Transpose <perm = [0, 2, 1, 3]>")
    body = body.replace("s = MatMul", _CAST + "s = MatMul").replace("Mul (s, scale)", "Mul (s, eighth)")
    inputs = f"float16[2, {tokens}, 128] x, bool[2, {tokens}] mask"
    constants = _CONSTANTS + ", float eighth = {0.125}"
    return graph(inputs, f"float16[2, {tokens}, 128] y", (_INDICES + body).replace(*changed), constants=constants)


@pytest.mark.parametrize("tokens", [40, "S"])
def test_products_of_16_bits_that_are_cast(tokens: object, tmp_path: Path) -> None:
    model = _cast(tokens)
    rewrite(model, tmp_path)
    (region,) = (r for r in fuse(model).regions if r.kind is FLASH_ATTENTION)
    assert isinstance(region.meaning, FlashAttention)
    assert (region.meaning.before, region.meaning.after, region.meaning.hidden) == (None, 0, "once")
    for count in (40,) if tokens == 40 else (40, 1, 23):
        np.testing.assert_allclose(run(model, _feeds(count)), run(_cast(tokens), _feeds(count)), atol=4e-3)


def test_values_of_another_dtype_than_the_product_stay(tmp_path: Path) -> None:
    done = rewrite(_cast(40, ("q = Cast <to = 1> (h)", "o2 = Cast <to = 1> (h) q = Add (o2, eighth)")), tmp_path)
    assert done.applied["attention"] == 0
    assert any("attention kernels take one dtype" in refusal.reason for refusal in done.refusals)


@pytest.mark.parametrize("tokens", [40, "S"])
@pytest.mark.parametrize(
    ("masked", "of_left"),
    [
        # every key in front of its query, from the third on: no window
        ("h = Greater (key, one) g = And (causal, h) m = Where (g, none, low) a = Add (f, m)", "scores"),
        # a sum of three that hide keys
        (
            "i = Where (causal, none, low) j = Where (kept, none, low) h = Where (local, none, low) b = Add (i, h) "
            "c = Add (b, j) a = Add (f, c)",
            "scores",
        ),
        # a sum of two, one of which hides by both
        (
            "g = And (causal, kept) i = Where (g, none, low) j = Where (local, none, low) b = Add (f, i) "
            "a = Add (b, j)",
            "scores",
        ),
        # a sum of two, one of which differs from query to query
        (
            "i = Where (causal, none, low) h = Greater (key, one) g = And (kept, h) n = Or (g, causal) "
            "j = Where (n, none, low) b = Add (f, i) a = Add (b, j)",
            "scores",
        ),
        # limited by a number that hides nothing
        ("g = And (causal, kept) m = Where (g, none, low) l = Max (m, scale) a = Add (f, l)", "scores"),
        # weak numbers hide nothing
        ("g = And (causal, kept) m = Where (g, none, one16) a = Add (f, m)", "scores"),
        # shown where one of both holds
        ("g = Or (causal, kept) m = Where (g, none, low) a = Add (f, m)", "scores"),
        # what always holds is left out, and queries share the rest
        ("c = GreaterOrEqual (query, zero) g = And (c, kept) m = Where (g, none, low) a = Add (f, m)", "keys"),
    ],
)
def test_other_conditions_stay_a_mask(masked: str, of_left: str, tokens: object, tmp_path: Path) -> None:
    text = masked.replace("one16", "scale")
    model = model_of(text, tokens)
    rewrite(model, tmp_path, usual={"S": 200})
    (region,) = (r for r in fuse(model, usual={"S": 200}).regions if r.kind is FLASH_ATTENTION)
    assert isinstance(region.meaning, FlashAttention)
    assert (region.meaning.before, region.meaning.after) == (None, None)
    rows = str((region.inputs[region.meaning.bias or 0].shape or ())[-2])
    assert rows == ("1" if of_left == "keys" else str(tokens))
    feeds = _feeds(40)
    y, expected = (run(m, feeds)[:, 2:] for m in (model, model_of(text, tokens)))  # two queries see no key
    np.testing.assert_allclose(y, expected, atol=4e-3)
