"""Attention of new tokens to a cache, as the rewriting leaves it, beside its results in float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import TensorProto, helper

from cases.models import fused_model
from cases.table import Row, Table

HALF = TensorProto.FLOAT16
WIDTH, GROUPS = 16, 2
EXPANDED = {"unsqueeze": [3], "expand": [1, 1, 1, 2, 1], "perm": [0, 2, 1, 3], "axis": 2}


def graph(
    batch: int | str = "batch", tokens: int | str = 3, past: int | str = "past", *, each: int = 2, dtype: int = HALF,
    mask: tuple[int | str, ...] | None = None, read: str = "", outputs: bool = True, slots: bool = False,
    width: int = WIDTH, **changed: object,
) -> onnx.ModelProto:  # fmt: skip
    """A step of a decoder as the rewriting leaves it. each: query heads of a group. mask: dims in front of the keys.

    read: a value inside the attention that the caller reads too. outputs: whether the cache is one. slots: whether it
    has room for the new tokens. width: elements of a head. changed: of EXPANDED, and attributes of the operator.
    """
    form = {**EXPANDED, "expand": [1, 1, 1, each, 1], **{k: v for k, v in changed.items() if k in EXPANDED}}
    heads, info = GROUPS * each, helper.make_tensor_value_info
    total = past if slots else f"{past} + {tokens}" if isinstance(past, str) else past + int(tokens)
    inputs = [info("q", dtype, [batch, tokens, heads * width])]
    inputs += [info(x, dtype, [batch, tokens, GROUPS, width]) for x in "kv"]
    inputs += [info(f"p{x}", dtype, [batch, GROUPS, past, width]) for x in "kv"]
    inputs.append(info("mask", dtype, [*(mask or (batch, 1, tokens)), total]))
    if slots:
        inputs.append(info("slots", TensorProto.INT64, [tokens, 1]))
    constants, nodes = [], []

    def constant(name: str, values: object) -> str:
        constants.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))  # type: ignore[arg-type]
        return name

    for name, values in (
        ("three", form["unsqueeze"]), ("times", form["expand"]), ("split", [0, 0, heads, width]),
        ("flat", [0, 0, heads * width]),
    ):  # fmt: skip
        constant(name, values)
    for x in "kv":
        appended = [
            helper.make_node("Transpose", [x], [f"{x}t"], perm=form["perm"]),
            helper.make_node("Concat", [f"p{x}", f"{x}t"], [f"n{x}"], axis=form["axis"]),
        ]
        scattered = [
            helper.make_node("Transpose", [f"p{x}"], [f"{x}p"], perm=[2, 0, 1, 3]),
            helper.make_node("Transpose", [x], [f"{x}t"], perm=[1, 0, 2, 3]),
            helper.make_node("ScatterND", [f"{x}p", "slots", f"{x}t"], [f"{x}w"]),
            helper.make_node("Transpose", [f"{x}w"], [f"n{x}"], perm=[1, 2, 0, 3]),
        ]
        nodes += scattered if slots else appended
        if each > 1:
            nodes += [
                helper.make_node("Transpose", [f"n{x}"], [f"{x}s"], perm=[0, 2, 1, 3]),
                helper.make_node("Unsqueeze", [f"{x}s", "three"], [f"{x}u"]),
                helper.make_node("Expand", [f"{x}u", "times"], [f"{x}e"]),
                helper.make_node("Reshape", [f"{x}e", "split"], [f"{x}h"]),
                helper.make_node("Reshape", [f"{x}h", "flat"], [f"{x}f"]),
            ]
    last = "f" if each > 1 else None
    operands = ["q", *(f"{x}{last}" if last else f"n{x}" for x in "kv"), "", "", "mask"]
    attributes = {k: v for k, v in changed.items() if k not in EXPANDED}
    nodes.append(
        helper.make_node(
            "MultiHeadAttention", operands, ["y"], "attention", domain="com.microsoft",
            **{"num_heads": heads, "scale": 0.25, **attributes},
        )
    )  # fmt: skip
    given = ["y", *(["nk", "nv"] if outputs else []), *([read] if read else [])]
    made = helper.make_graph(nodes, "g", inputs, [info(name, dtype, None) for name in given], constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def feeds(
    rng: np.random.Generator, batch: int, tokens: int, past: int, each: int, mask: tuple[int, ...], slots: bool,
    width: int = WIDTH,
) -> dict:  # fmt: skip
    shapes = {"q": (batch, tokens, GROUPS * each * width)}
    shapes |= dict.fromkeys("kv", (batch, tokens, GROUPS, width))
    shapes |= dict.fromkeys(("pk", "pv"), (batch, GROUPS, past, width))
    found = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    if slots:
        found["slots"] = rng.permutation(past)[:tokens, None] - past * (rng.random((tokens, 1)) < 0.5)
        past -= tokens
    drawn = rng.standard_normal((*mask, past + tokens))
    seen = np.arange(past + tokens) <= np.arange(past, past + tokens)[: mask[2], None]
    return found | {"mask": np.where(seen, drawn, -65504).astype(np.float16)}


def expected(given: dict[str, np.ndarray], each: int) -> list[np.ndarray]:
    """The attention (B, S, N H) of float64, and both caches after the step."""
    wide = {name: value.astype(np.float64) for name, value in given.items() if name != "slots"}
    batch, tokens, groups, width = wide["k"].shape
    caches = []
    for x in "kv":
        fresh = wide[x].transpose(0, 2, 1, 3)
        cache = wide[f"p{x}"].copy() if "slots" in given else np.concatenate([wide[f"p{x}"], fresh], axis=2)
        if "slots" in given:
            cache[:, :, given["slots"][:, 0]] = fresh
        caches.append(cache)
    q = wide["q"].reshape(batch, tokens, groups, each, width)
    scores = (
        0.25 * np.einsum("bsghw,bgtw->bghst", q, caches[0]).reshape(batch, groups * each, tokens, -1) + wide["mask"]
    )
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = (weights / weights.sum(axis=-1, keepdims=True)).reshape(batch, groups, each, tokens, -1)
    y = np.einsum("bghst,bgtw->bsghw", weights, caches[1])
    return [y.reshape(batch, tokens, groups * each * width), *caches]


@dataclasses.dataclass(frozen=True)
class Case:
    """A step under a mask. tokens: new ones. each: query heads of a group. slots: whether the cache has room."""

    batch: int = 2
    past: int = 5
    tokens: int = 3
    each: int = 2
    mask: tuple[int | str, ...] = ("batch", 1, 3)
    slots: bool = False
    width: int = WIDTH

    def model(self) -> onnx.ModelProto:
        return graph(tokens=self.tokens, each=self.each, mask=self.mask, slots=self.slots, width=self.width)

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([seed, self.past])
        mask = tuple(self.batch if dim == "batch" else int(dim) for dim in self.mask)
        return feeds(rng, self.batch, self.tokens, self.past, self.each, mask, self.slots, self.width)

    def expected(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(("y", "nk", "nv"), expected(given, self.each), strict=True))


@dataclasses.dataclass(frozen=True)
class Grouped:
    """One token's GroupQueryAttention, q beside k and v in one input."""

    batch: int = 2
    past: int = 5
    heads: int = 4
    groups: int = 2
    width: int = 16

    def model(self) -> onnx.ModelProto:
        cache = [self.batch, self.groups, self.past, self.width]
        packed = [self.batch, 1, (self.heads + 2 * self.groups) * self.width]
        info = helper.make_tensor_value_info
        inputs = [info("q", HALF, packed), info("pk", HALF, cache), info("pv", HALF, cache)]
        outputs = [info(name, HALF, None) for name in ("y", "nk", "nv")]
        constants = [
            helper.make_tensor("lengths", TensorProto.INT32, [self.batch], [self.past] * self.batch),
            helper.make_tensor("total", TensorProto.INT32, [], [self.past + 1]),
        ]
        node = helper.make_node(
            "GroupQueryAttention", ["q", "", "", "pk", "pv", "lengths", "total"], ["y", "nk", "nv"],
            domain="com.microsoft", num_heads=self.heads, kv_num_heads=self.groups, scale=0.25,
        )  # fmt: skip
        made = helper.make_graph([node], "g", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(made, opset_imports=opsets, ir_version=10)

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        dims = [tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in self.model().graph.input]
        return {k: rng.standard_normal(d).astype(np.float16) for k, d in zip(("q", "pk", "pv"), dims, strict=True)}

    def expected(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        q, k, v = np.split(given["q"], [self.heads * self.width, (self.heads + self.groups) * self.width], axis=-1)
        fresh = {x: y.reshape(self.batch, 1, self.groups, self.width) for x, y in (("k", k), ("v", v))}
        step = {"q": q, **fresh, "pk": given["pk"], "pv": given["pv"], "mask": np.zeros(1)}
        return dict(zip(("y", "nk", "nv"), expected(step, self.heads // self.groups), strict=True))


def _error(found: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> float:
    """Of the attention as a multiple of the limit; the caches must agree."""
    if any(not np.array_equal(found[name].astype(np.float64), right[name]) for name in ("nk", "nv")):
        return np.inf
    off = np.abs(found["y"].astype(np.float64) - right["y"]).max() / 4e-3
    return float(off) if np.isfinite(off) else np.inf


def _sizes(slots: bool, *forms: tuple[int, int, tuple[int | str, ...], int]) -> tuple[Case, ...]:
    """Steps of some forms, each for caches of several sizes."""
    return tuple(
        Case(batch, past, tokens, each, mask, slots, width)
        for tokens, each, mask, width in forms
        for batch, past in ((2, 7), (1, 33), (3, 600), (1, 5000))
        if not slots or past >= tokens
    )


_FORMS = (
    (4, 4, ("batch", 1, 4), 16), (16, 8, (1, 1, 16), 16), (1, 8, (1, 8 * GROUPS, 1), 16), (5, 1, (1, 1, 5), 16),
    (1, 1, ("batch", 1, 1), 128), (2, 3, (1, 1, 2), 128), (1, 8, (1, 8 * GROUPS, 1), 64), (7, 1, (1, 1, 7), 64),
)  # fmt: skip
TABLE = Table(
    "attention",
    (
        Row("one token", (Grouped(), Grouped(3, 600, 8, 1, 64))),
        *(Row(f"form {k}, {'room' if slots else 'appended'}", _sizes(slots, form), gpu=True)
          for k, form in enumerate(_FORMS) for slots in (False, True)),
    ),
    lambda case: fused_model(case.model()),
    lambda _case, _, found, right: _error(found, right),
    emulated="",
    damaged={"attention": (Grouped(),), "attention_masked": (Case(),)},
)  # fmt: skip
