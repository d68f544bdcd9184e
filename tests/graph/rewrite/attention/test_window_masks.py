"""Attention in shifted windows: the masks of an image's windows are added to the scores as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.attention.window_masks import ComputedMask, WindowMask
from onnxopt.graph.shapes.infer import infer
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from tests.support.graphs import graph, hold, run
from tests.support.refused import reason

WINDOWS, TOKENS, HEADS, SIZE = 3, 5, 2, 8
WIDTH = HEADS * SIZE
BODY = """
    t = Reshape (x, tokens)
    l = MatMul (t, w)
    split = Reshape (l, parts)
    turned = Transpose <perm = [2, 0, 3, 1, 4]> (split)
    q = Gather <axis = 0> (turned, first)
    k = Gather <axis = 0> (turned, second)
    v = Gather <axis = 0> (turned, third)
    scaled = Mul (q, scale)
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    s = MatMul (scaled, kt)
    {scores}
    masked = Reshape (five, four)
    p = Softmax <axis = -1> (masked)
    a = MatMul (p, v)
    at = Transpose <perm = [0, 2, 1, 3]> (a)
    y = Reshape (at, flat)
"""
CUT = BODY[BODY.index("    l = MatMul") : BODY.index("    scaled")]
SEPARATE = "".join(
    f"m{p} = MatMul (t, w{p}) l{p} = Add (m{p}, b{p}) r{p} = Reshape (l{p}, heads) "
    f"{p} = Transpose <perm = [0, 2, 1, 3]> (r{p})\n"
    for p in "qkv"
)
BIASED = "b = Add (s, bias) apart = Reshape (b, to_five) five = Add (apart, mask)"
TWICE = BIASED.replace("five = Add (apart, mask)", "once = Add (apart, mask) five = Add (other, once)")
PLAIN = "apart = Reshape (s, to_five) five = Add (mask, apart)"


def model(scores: str, images: str, windows: int = WINDOWS, body: str = BODY) -> ir.Model:
    """Attention of x [images, windows, tokens, width] in windows; every image has a mask for each of its windows."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((WIDTH, 3 * WIDTH)) * 0.3,
        "scale": np.array([0.5]),
        "bias": rng.standard_normal((1, HEADS, TOKENS, TOKENS)),
        "mask": np.where(rng.random((1, windows, 1, TOKENS, TOKENS)) < 0.4, -100.0, 0.0),
        "other": rng.standard_normal((1, windows, 1, TOKENS, TOKENS)),
        "row": rng.standard_normal((1, 1, 1, 1, TOKENS)),
        **{f"w{part}": rng.standard_normal((WIDTH, WIDTH)) * 0.3 for part in "qkv"},
        **{f"b{part}": rng.standard_normal(WIDTH) for part in "qkv"},
    }
    held = [f"float16[{','.join(map(str, a.shape))}] {name}" for name, a in arrays.items()]
    source = graph(
        f"float16[{images}, {WINDOWS}, {TOKENS}, {WIDTH}] x, " + ", ".join(held),
        f"float16[n, {TOKENS}, {WIDTH}] y",
        body.replace("{scores}", scores),
        constants=(
            f"int64[4] heads = {{0, 0, {HEADS}, {SIZE}}}, "
            f"int64[3] tokens = {{-1, {TOKENS}, {WIDTH}}}, int64[5] parts = {{-1, {TOKENS}, 3, {HEADS}, {SIZE}}}, "
            f"int64 first = {{0}}, int64 second = {{1}}, int64 third = {{2}}, "
            f"int64[5] to_five = {{-1, {windows}, {HEADS}, {TOKENS}, {TOKENS}}}, "
            f"int64[4] four = {{-1, {HEADS}, {TOKENS}, {TOKENS}}}, int64[3] flat = {{-1, {TOKENS}, {WIDTH}}}"
        ),
    )
    hold(source, arrays, np.float16)
    return source


@pytest.mark.parametrize("images", ["4", "images"])
@pytest.mark.parametrize("scores", [BIASED, TWICE, PLAIN], ids=["bias and mask", "two masks", "mask"])
def test_windows_become_one_attention(scores: str, images: str, tmp_path: Path) -> None:
    source = model(scores, images)
    found = source.clone()
    assert rewrite(found, tmp_path).applied["attention"] == 1
    operators = [node.op_type for node in found.graph]
    assert operators.count("Tile") == operators.count("MultiHeadAttention") == 1
    assert "Softmax" not in operators
    (region,) = (r for r in fuse(found).regions if r.kind is FLASH_ATTENTION)
    assert {"Tile", "MultiHeadAttention"} <= {n.op_type for n in region.nodes}
    assert ("Shape" in {n.op_type for n in region.nodes}) == (images == "images")
    for count in (4, 1) if images == "images" else (4,):
        x = np.random.default_rng(count).standard_normal((count, WINDOWS, TOKENS, WIDTH)).astype(np.float16)
        (one,), (other,) = run(found, {"x": x}), run(source, {"x": x})
        np.testing.assert_allclose(one, other, rtol=4e-3, atol=4e-3)


def test_products_of_one_tensor_are_one_though_images_are_read_off_queries(tmp_path: Path) -> None:
    source = model(BIASED, "images", body=BODY.replace(CUT, SEPARATE))
    found = source.clone()
    assert rewrite(found, tmp_path).applied["attention"] == 1
    assert [node.op_type for node in found.graph].count("MatMul") == 1
    (region,) = (r for r in fuse(found).regions if r.kind is FLASH_ATTENTION)
    assert {"Tile", "Shape", "Split", "MultiHeadAttention"} <= {n.op_type for n in region.nodes}
    for count in (4, 1):
        x = np.random.default_rng(count).standard_normal((count, WINDOWS, TOKENS, WIDTH)).astype(np.float16)
        (one,), (other,) = run(found, {"x": x}), run(source, {"x": x})
        np.testing.assert_allclose(one, other, rtol=8e-3, atol=8e-3)


@pytest.mark.parametrize(
    ("scores", "images", "windows", "why"),
    [
        (BIASED, "images", 2 * WINDOWS, "the fifth dim does not number the windows of an image"),
        (BIASED.replace("(apart, mask)", "(apart, apart)"), "images", WINDOWS, "the mask, or the bias, is no constant"),
        (TWICE.replace("other", "row"), "images", WINDOWS, "the two masks differ in shape"),
        (PLAIN, "?", WINDOWS, "the number of images is no dim of an input"),
    ],
    ids=["masks of two images", "no mask", "masks of two shapes", "images without a name"],
)  # fmt: skip
def test_what_is_refused(scores: str, images: str, windows: int, why: str, tmp_path: Path) -> None:
    source = model(scores, images, windows)
    found = source.clone()
    rewrite(found, tmp_path)
    assert "Tile" not in [node.op_type for node in found.graph]
    assert reason(source, "masked", WindowMask.rule(source.graph.inputs)) == why


COMPUTED = """
    sizes = Shape <end = 2> (x)
    to_five = Concat <axis = 0> (sizes, window)
    hidden = Less (m, zero)
    low = Where (hidden, m, nothing)
    mask = Unsqueeze (low, around)
    b = Add (s, bias)
    apart = Reshape (b, to_five)
    five = Add ({operands})
"""


def dynamic(operands: str = "apart, mask", masks: str = "windows", dtype: type[np.floating] = np.float16) -> ir.Model:
    """The same of any number of windows, whose masks are computed of an input."""
    rng, stored = np.random.default_rng(0), {np.float16: "float16", np.float32: "float"}[dtype]
    arrays = {
        "w": rng.standard_normal((WIDTH, 3 * WIDTH)) * 0.3, "scale": np.array([0.5]), "zero": np.array([0.0]),
        "nothing": np.array([0.0]), "bias": rng.standard_normal((1, HEADS, TOKENS, TOKENS)),
    }  # fmt: skip
    held = [f"{stored}[{','.join(map(str, a.shape))}] {name}" for name, a in arrays.items()]
    source = graph(
        f"{stored}[images, windows, {TOKENS}, {WIDTH}] x, {stored}[{masks}, {TOKENS}, {TOKENS}] m, " + ", ".join(held),
        f"{stored}[n, {TOKENS}, {WIDTH}] y", BODY.replace("{scores}", COMPUTED.format(operands=operands)),
        constants=(
            f"int64[3] tokens = {{-1, {TOKENS}, {WIDTH}}}, int64[5] parts = {{-1, {TOKENS}, 3, {HEADS}, {SIZE}}}, "
            "int64 first = {0}, int64 second = {1}, int64 third = {2}, int64[2] around = {0, 2}, "
            f"int64[3] window = {{{HEADS}, {TOKENS}, {TOKENS}}}, int64[3] flat = {{-1, {TOKENS}, {WIDTH}}}, "
            f"int64[4] four = {{-1, {HEADS}, {TOKENS}, {TOKENS}}}"
        ),
    )  # fmt: skip
    hold(source, arrays, dtype)
    return source


@pytest.mark.parametrize("operands", ["apart, mask", "mask, apart"])
def test_masks_of_a_symbolic_number_of_windows(operands: str, tmp_path: Path) -> None:
    source = dynamic(operands)
    found = source.clone()
    assert rewrite(found, tmp_path).applied["attention"] == 1
    operators = [node.op_type for node in found.graph]
    assert "Softmax" not in operators and operators.count("MultiHeadAttention") == operators.count("Tile") == 1
    (region,) = (r for r in fuse(found).regions if r.kind is FLASH_ATTENTION)
    assert {"Shape", "Div", "Tile", "MultiHeadAttention"} <= {n.op_type for n in region.nodes}
    for images, windows in ((2, 3), (1, 4), (3, 1)):
        rng = np.random.default_rng(windows)
        x = rng.standard_normal((images, windows, TOKENS, WIDTH)).astype(np.float16)
        m = np.where(rng.random((windows, TOKENS, TOKENS)) < 0.4, -100.0, 1.0).astype(np.float16)
        (one,), (other,) = (run(form, {"x": x, "m": m}) for form in (found, source))
        np.testing.assert_allclose(one, other, rtol=4e-3, atol=4e-3)


def test_images_are_read_off_queries_of_16_bits_alone(tmp_path: Path) -> None:
    """The kernels of float32 attention are ONNX Runtime's, and q has no other reader then."""
    for source, counted in ((dynamic(), True), (dynamic(dtype=np.float32), False)):
        assert rewrite(source, tmp_path).applied["attention"] == 1
        (tile,) = (node for node in source.graph if node.op_type == "Tile")
        count = tile.inputs[1].producer().inputs[0].producer()
        assert count.op_type == ("Div" if counted else "Shape")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (dynamic(masks="n"), "the result has another shape than the scores"),
        (dynamic("apart, apart"), "the mask does not repeat along the batch, or dims of a window are symbolic"),
        (model(PLAIN, "images"), "the mask is a constant"),
    ],
    ids=["masks of other windows", "no mask", "a constant"],
)  # fmt: skip
def test_what_of_computed_masks_is_refused(source: ir.Model, why: str) -> None:
    assert reason(source, "masked", ComputedMask.rule(source.graph.inputs, infer(source))) == why
