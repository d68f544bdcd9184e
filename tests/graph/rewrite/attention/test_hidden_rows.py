"""Queries whose every key a finite mask hides weigh their keys as the original's sums round: see hidden_rows.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse
from onnxopt.graph.rewrite import rewrite, to_portable
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from onnxopt.program.flash_attention import FlashAttention
from tests.kinds.flash_attention.test_masks_in_parts import model_of, run

_PADDING = "m = Where (kept, none, low)"
_BOTH = "g = And (causal, kept)"
_WIDE = "c = Cast <to = 1> (f) wide_mask = Where (g, nothing, {low}) b = Add (c, wide_mask) a = Cast <to = 10> (b)"
# What such a query weighs: all keys alike, those alike that one of two masks hides, of two that hide what lies outside
# of the window those of the window, or keys by their scores.
_MASKS = {
    "set": ("a = Where (kept, f, low)", "all"),
    "added": (f"{_PADDING} a = Add (f, m)", "all"),
    "of input": ("a = Add (f, bias)", "all"),
    "set by both": (f"{_BOTH} a = Where (g, f, low)", "all"),
    "one mask of both": (f"{_BOTH} m = Where (g, none, low) a = Add (f, m)", "all"),
    "set over a sum": (f"{_PADDING} d = Add (f, m) a = Where (causal, d, low)", "all"),
    "sum of two": (f"{_PADDING} l = Where (causal, none, low) d = Add (m, l) a = Add (f, d)", "once"),
    "one after the other": (f"{_PADDING} l = Where (causal, none, low) d = Add (f, l) a = Add (d, m)", "once"),
    "set, then added": (f"{_PADDING} d = Where (causal, f, low) a = Add (d, m)", "once"),
    "set, then by both": (f"{_BOTH} m = Where (g, none, low) d = Where (causal, f, low) a = Add (d, m)", "window"),
    "float32's least": (f"{_BOTH} {_WIDE.format(low='wide')}", "all"),
    "too little for float32": (f"{_BOTH} {_WIDE.format(low='little')}", "scores"),
}
_TOKENS = 40


def _feeds() -> dict[str, np.ndarray]:
    """The first keys of a sequence are hidden, and all keys of another one."""
    random = np.random.default_rng(5)
    mask = np.ones((2, _TOKENS), np.bool_)
    mask[0, :7] = mask[1] = False
    x = random.standard_normal((2, _TOKENS, 128)).astype(np.float16)
    return {"x": x, "mask": mask, "bias": np.where(mask, 0, -65504).astype(np.float16)[:, None, None]}


def _expected(feeds: dict[str, np.ndarray], is_causal: bool, weigh: str) -> np.ndarray:
    x = feeds["x"].astype(np.float64).reshape(2, _TOKENS, 2, 64).transpose(0, 2, 1, 3)
    scores = x @ x.transpose(0, 1, 3, 2) / 8
    window, padding = np.tri(_TOKENS, dtype=np.bool_) | (not is_causal), feeds["mask"][:, None, None]
    times = (~window).astype(int) + ~padding if weigh in ("once", "window") else ~(window & padding)
    times = times + ~window if weigh == "window" else times
    added = np.where(np.asarray(times) > 1, -np.inf, np.where(np.asarray(times) == 1, -1e30, 0.0))  # rounds scores away
    shown = window & padding
    if weigh == "scores":
        added = np.where(shown | ~shown.any(-1, keepdims=True), 0.0, -np.inf)
    scores = scores + added
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y = weights / weights.sum(-1, keepdims=True) @ x
    return np.asarray(y.transpose(0, 2, 1, 3).reshape(2, _TOKENS, 128))


@pytest.mark.parametrize("tokens", [_TOKENS, "S"])
@pytest.mark.parametrize("mask", _MASKS)
def test_weights_of_hidden_rows(mask: str, tokens: object, tmp_path: Path) -> None:
    text, weigh = _MASKS[mask]
    model = model_of(text, tokens, shared=True)
    feeds = _feeds()
    assert rewrite(model, tmp_path, usual={"S": 200}).applied["attention"] == 1
    expected = _expected(feeds, "causal" in text, weigh)
    np.testing.assert_allclose(run(model, feeds), expected, atol=4e-3)
    (region,) = (r for r in fuse(model, usual={"S": 200}).regions if r.kind is FLASH_ATTENTION)
    assert isinstance(region.meaning, FlashAttention)
    assert region.meaning.hidden == weigh
    assert (region.meaning.after == 0) == ("causal" in text and weigh != "scores")  # other masks stay whole
    assert {node.op_type for node in model.graph} - {node.op_type for node in region.nodes} <= {
        "Reshape", "Transpose", "Constant", "Unsqueeze", "Where", "Max", "Not", "And", "GreaterOrEqual", "Sub", "Range",
        "Squeeze", "Shape", "Cast", "Slice", "Split",
    }  # fmt: skip
    to_portable(model)
    np.testing.assert_allclose(run(model, feeds), expected, atol=4e-3)


@pytest.mark.parametrize("shape", [(_TOKENS,), (1, 1, 1, _TOKENS)])
@pytest.mark.parametrize("numbers", [{0: 0.0}, {0: -100.0, 9: -65504.0}])
def test_masks_that_hide_no_row(numbers: dict[int, float], shape: tuple[int, ...], tmp_path: Path) -> None:
    """Constants that show each query a key, or hide by little."""
    model, part = model_of("a = Add (f, bias)", _TOKENS), np.zeros(_TOKENS, np.float16)
    for at, number in numbers.items():
        part[at:] = number
    bias = next(value for value in model.graph.inputs if value.name == "bias")
    constant = ir.Value(name="part", const_value=ir.tensor(part.reshape(shape)), shape=ir.Shape(shape), type=bias.type)
    model.graph.initializers["part"] = constant
    bias.replace_all_uses_with(constant)
    assert rewrite(model, tmp_path).applied["attention"] == 1
    assert "ReduceMax" not in {node.op_type for node in model.graph}


@pytest.mark.parametrize(("weight", "factor"), [(1.0, 2.0), (1.0, -65504.0), (-65504.0, 1.0)])
def test_biases_of_products_hide_no_row(weight: float, factor: float, tmp_path: Path) -> None:
    """As of relative positions; a mask of zeros and ones may be a product too, with a large factor or weight."""
    model = model_of("a = Add (f, bias)", _TOKENS)
    bias = next(value for value in model.graph.inputs if value.name == "bias")
    ones, number = (
        ir.Value(name=name, const_value=ir.tensor(array.astype(np.float16)))
        for name, array in (("ones", np.full((1, 1, _TOKENS, 1), weight)), ("number", np.array(factor)))
    )
    product = ir.node("MatMul", [ones, bias], name="product")
    scaled = ir.node("Mul", [product.outputs[0], number], name="scaled")
    for value in (ones, number):
        model.graph.initializers[str(value.name)] = value
    for use in list(bias.uses()):
        if use.node is not product:
            use.node.replace_input_with(use.idx, scaled.outputs[0])
    model.graph.insert_before(model.graph[0], [product, scaled])
    for node in (product, scaled):
        node.outputs[0].shape, node.outputs[0].dtype = ir.Shape((2, 1, _TOKENS, _TOKENS)), ir.DataType.FLOAT16
    assert rewrite(model, tmp_path).applied["attention"] == 1
    assert ("ReduceMax" in {node.op_type for node in model.graph}) == (min(weight, factor) < 0)
