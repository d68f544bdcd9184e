"""Attention of several tokens behind a cache, under a mask, as the rewriting leaves it, and inputs of it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

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
