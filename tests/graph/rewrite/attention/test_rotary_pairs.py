"""Rotary embedding of neighbouring elements: tables with each angle once, and one kernel in front of the attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse
from onnxopt.graph.rewrite.rotary_pairs import RotatePairs
from onnxopt.graph.shapes.infer import InferShapesPass
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from onnxopt.kinds.pointwise.kind import POINTWISE
from tests.support.attention.attention_graphs import HEADS, SIZE, WIDTH, ops, rewritten
from tests.support.graphs import graph, hold, run
from tests.support.refused import reason

TOKENS = 6
# From `angles` [1, S, R / 2] to `cos` and `sin` [1, 1, S, R], or [1, S, 1, R] where heads are behind the tokens.
_REPEAT = "{t}4 = Unsqueeze ({t}3, last) {t}5 = {how} {t}6 = Reshape ({t}5, whole) {t} = Unsqueeze ({t}6, heads_axis)"
TABLES = {
    "Expand of angles": "a4 = Unsqueeze (angles, last) a5 = Expand (a4, twice) a6 = Reshape (a5, whole)"
    " c3 = Cos (a6) c2 = Mul (c3, half) cos = Unsqueeze (c2, heads_axis)"
    " s3 = Sin (a6) s2 = Mul (s3, half) sin = Unsqueeze (s2, heads_axis)",
    "Expand of tables": "cos3 = Cos (angles) sin3 = Sin (angles) "
    + " ".join(_REPEAT.replace("{how}", "Expand ({t}4, twice)").replace("{t}", t) for t in ("cos", "sin")),
    "Concat of a Split": "both = Concat <axis = -1> (angles, angles) tables = Cos (both)"
    " cos3, sin3 = Split <axis = -1, num_outputs = 2> (tables) "
    + " ".join(_REPEAT.replace("{how}", "Concat <axis = -1> ({t}4, {t}4)").replace("{t}", t) for t in ("cos", "sin")),
    "constants": "cos = Identity (cos_table) sin = Identity (sin_table)",
}
ROTATED = """
    {n}e = Slice ({n}p, zero, end, axis, two) {n}o = Slice ({n}p, one, end, axis, two) {n}m = Neg ({n}o)
    {n}e5 = Unsqueeze ({n}e, last) {n}m5 = Unsqueeze ({n}m, last) {n}s = Concat <axis = -1> ({n}m5, {n}e5)
    {n}s4 = Reshape ({n}s, back) {n}c = Mul ({n}p, cos) {n}z = Mul ({n}s4, sin) {n}x = Add ({n}c, {n}z)
"""
WHOLE = "{n}p = Identity ({n})" + ROTATED + "{n}y = Identity ({n}x)"
PART = "{n}p = Slice ({n}, zero, part, axis)" + ROTATED
PART += "{n}r = Slice ({n}, part, end, axis) {n}y = Concat <axis = -1> ({n}x, {n}r)"


def model(tables: str, rotation: str, before: bool, rotated: int = SIZE, dims: str = f"batch, {TOKENS}") -> ir.Model:
    """Self-attention with rotary embedding of `rotated` elements of each head, before the Transpose to heads or not."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(-3, 3, (1, TOKENS, rotated // 2))
    repeated = np.expand_dims(np.repeat(angles, 2, axis=-1), 2 if before else 1)
    arrays = {f"w{n}": rng.standard_normal((WIDTH, WIDTH)) * 0.5 for n in "qkv"}
    arrays |= {"cos_table": np.cos(repeated), "sin_table": np.sin(repeated), "half": np.array([0.5])}
    held = "".join(f", float16{[*a.shape]} {name}" for name, a in arrays.items())
    lines = [tables]
    turn = "{n}t = Transpose <perm = [0, 2, 1, 3]> ({n}y)" if before else "{n}t = Identity ({n}y)"
    for n in "qk":
        to_heads = "{n} = Identity ({n}h)" if before else "{n} = Transpose <perm = [0, 2, 1, 3]> ({n}h)"
        lines += [f"{n}l = MatMul (x, w{n}) {n}h = Reshape ({n}l, heads)"]
        lines += [text.replace("{n}", n) for text in (to_heads, rotation, turn)]
    lines += ["vl = MatMul (x, wv) vh = Reshape (vl, heads) v = Transpose <perm = [0, 2, 1, 3]> (vh)"]
    lines += ["kt4 = Transpose <perm = [0, 1, 3, 2]> (kt) s = MatMul (qt, kt4) p = Softmax <axis = -1> (s)"]
    lines += ["a = MatMul (p, v) at = Transpose <perm = [0, 2, 1, 3]> (a)  y = Reshape (at, flat)"]
    back = f"0, 0, {HEADS if before else TOKENS}, {rotated}"
    source = graph(
        f"float16[{dims}, {WIDTH}] x, float16[1, {TOKENS}, {rotated // 2}] angles" + held,
        f"float16[{dims}, {WIDTH}] y", "\n".join(lines),
        constants=f"int64[4] heads = {{0, -1, {HEADS}, {SIZE}}}, int64[3] flat = {{0, -1, {WIDTH}}}, "
        f"int64[1] last = {{-1}}, int64[4] twice = {{1, 1, 1, 2}}, int64[3] whole = {{1, {TOKENS}, {rotated}}}, "
        f"int64[1] heads_axis = {{{2 if before else 1}}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, "
        f"int64[1] two = {{2}}, int64[1] part = {{{rotated}}}, int64[1] end = {{9223372036854775807}}, "
        f"int64[1] axis = {{3}}, int64[4] back = {{{back}}}",
    )  # fmt: skip
    hold(source, arrays, np.float16)
    return source


def _viewed(value: ir.Value) -> ir.Value:
    """What a value is a view of."""
    node = value.producer()
    source = node.inputs[0] if node is not None and node.op_type == "Reshape" else None
    return value if source is None else _viewed(source)


def angles_of(rotated: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-3, 3, (1, TOKENS, rotated // 2)).astype(np.float16)


@pytest.mark.parametrize("before", [True, False], ids=["before the Transpose", "behind it"])
@pytest.mark.parametrize("rotation", [WHOLE, PART], ids=["whole heads", "parts of heads"])
@pytest.mark.parametrize("tables", TABLES)
def test_nothing_but_rotation_is_left_in_front_of_the_attention(
    tables: str, rotation: str, before: bool, tmp_path: Path
) -> None:
    rotated = SIZE if rotation is WHOLE else SIZE // 2
    source = model(TABLES[tables], rotation, before, rotated)
    found, done = rewritten(source, tmp_path)
    assert (done.applied["attention"], done.applied["merge"], done.refusals) == (1, 1, ())
    assert "Expand" not in ops(found) and "Split" not in ops(found)
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, TOKENS, WIDTH)).astype(np.float16)
        feeds = {"x": x, "angles": angles_of(rotated)}
        (one,), (other,) = run(found, feeds), run(source, feeds)
        np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), rtol=8e-3, atol=8e-3)
    plan = fuse(found)
    (attention,) = (region for region in plan.regions if region.kind is FLASH_ATTENTION)
    rotating = [r for r in plan.regions if r.kind is POINTWISE and "Neg" in {n.op_type for n in r.nodes}]
    assert len(rotating) == (1 if before else 2)
    outputs = {_viewed(value) for region in rotating for value in region.outputs}
    assert outputs < {_viewed(value) for value in attention.inputs}
    inside = {node for region in plan.regions for node in region.nodes}
    assert {n.op_type for n in found.graph if n not in inside} <= {"MatMul", "Reshape", "Unsqueeze"}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("ko = Slice (kp, one", "ko = Slice (kp, zero", "Slice does not take every second element of a head"),
        ("a5 = Expand (a4, twice)", "a5 = Concat <axis = -1> (a4, cos4)", "the table `cos` is not known to"),
        ("c3 = Cos (a6)", "c3 = Softmax (a6)", "the table `cos` is not known to"),
    ],
    ids=["even twice", "two tables", "along pairs"],
)  # fmt: skip
def test_what_is_refused(old: str, new: str, why: str) -> None:
    tables = TABLES["Expand of angles"].replace(old, new)
    tables = tables.replace("a5 = Concat", "cos4 = Exp (a4) a5 = Concat")
    source = model(tables, WHOLE.replace(old.replace("k", "{n}"), new.replace("k", "{n}")), True)
    InferShapesPass()(source)
    assert reason(source, "kx", RotatePairs.rule()).startswith(why)


def test_tables_whose_pairs_differ_are_refused() -> None:
    source = model(TABLES["constants"], WHOLE, True)
    table = source.graph.initializers["cos_table"]
    array = table.const_value.numpy().copy()
    array[..., 1] += 1
    table.const_value = ir.tensor(array, name="cos_table")
    for node in source.graph:
        if node.name == "cos":
            node.outputs[0].replace_all_uses_with(table)
    InferShapesPass()(source)
    assert reason(source, "kx", RotatePairs.rule()).startswith("the table `cos_table` is not known to have each angle")
