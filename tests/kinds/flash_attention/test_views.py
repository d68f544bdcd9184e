"""Where queries, keys and values lie, followed back through what exporters write, against the elements themselves."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.kinds.flash_attention.lower import attention

B, S, N, H = 2, 5, 3, 4
W = 3 * N * H
CONSTANTS = f"int64[5] five = {{0, 0, 3, {N}, {H}}}, int64[5] inner = {{0, 0, {N}, 3, {H}}}, int64[1] zero = {{0}}, "
CONSTANTS += "int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64 first = {0}, int64 second = {1}, "
CONSTANTS += f"int64 third = {{2}}, int64[3] flat = {{0, 0, {N * H}}}, int64[4] heads = {{0, 0, {N}, {H}}}, "
CONSTANTS += f"int64[1] width = {{{N * H}}}, int64[1] twice = {{{2 * N * H}}}, int64[1] all = {{{W}}}"


def _parts(source: str, cut: str) -> str:
    """q flat, k and v [B, N, S, H], each by `cut` of `source`, with {k} for its number and {n} for its name."""
    names = ("first", "second", "third"), ("zero", "one", "two"), ("one", "two", "three")
    made = "".join(cut.format(i=i, s=s, e=e, n=n) for i, s, e, n in zip(*names, "qkv", strict=True))
    return source + made


# How x [B, S, W] becomes q [B, S, N H], k and v; and whether the kernel reads x itself.
CASES = {
    "unbind by Gather": _parts(
        "r = Reshape(x, five) t = Transpose<perm=[2, 0, 3, 1, 4]>(r) ", "{n}4 = Gather<axis=0>(t, {i}) "
    ) + "qt = Transpose<perm=[0, 2, 1, 3]>(q4) q = Reshape(qt, flat) k = Identity(k4) v = Identity(v4)",
    "unbind by Slice": _parts(
        "r = Reshape(x, five) t = Transpose<perm=[2, 0, 3, 1, 4]>(r) ",
        "{n}5 = Slice(t, {s}, {e}, zero) {n}4 = Squeeze({n}5, zero) ",
    ) + "qt = Transpose<perm=[0, 2, 1, 3]>(q4) q = Reshape(qt, flat) k = Identity(k4) v = Identity(v4)",
    "heads with q, k and v of each": "r = Reshape(x, inner) q5, k5, v5 = Split<axis=3, num_outputs=3>(r) "
    "q4 = Squeeze(q5, three) q = Reshape(q4, flat) "
    "k3 = Squeeze(k5, three) k = Transpose<perm=[0, 2, 1, 3]>(k3) "
    "v3 = Squeeze(v5, three) v = Transpose<perm=[0, 2, 1, 3]>(v3)",
    "columns, and heads of them": "q, k3, v3 = Split<axis=2, num_outputs=3>(x) "
    "k5 = Reshape(k3, heads) k = Transpose<perm=[0, 2, 1, 3]>(k5) "
    "v5 = Reshape(v3, heads) v = Transpose<perm=[0, 2, 1, 3]>(v5)",
    "Slices of columns": "q = Slice(x, zero, width, two) k3 = Slice(x, width, twice, two) "
    "v3 = Slice(x, twice, all, two) k5 = Reshape(k3, heads) k = Transpose<perm=[0, 2, 1, 3]>(k5) "
    "v5 = Reshape(v3, heads) v = Transpose<perm=[0, 2, 1, 3]>(v5)",
}  # fmt: skip


def _model(body: str, batch: object = B, tokens: object = S) -> onnx.ModelProto:
    text = f"""<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float16[{batch}, {tokens}, {W}] x) => (float16[{batch}, {tokens}, {N * H}] y) <{CONSTANTS}> {{
      {body.replace("k = Identity(k4) v = Identity(v4)", "")}
      y = com.microsoft.MultiHeadAttention<num_heads={N}>(q, {"k4, v4" if "Identity" in body else "k, v"})
    }}"""
    return onnx.parser.parse_model(text)


def _attention(model: onnx.ModelProto):
    graph = ir.serde.deserialize_model(model)
    known = shape_inference.infer(graph)
    return attention(graph.graph[-1], known)


@pytest.mark.parametrize("dims", [(B, S), ("B", "S")])
@pytest.mark.parametrize("name", CASES)
def test_the_elements_lie_where_the_kernel_reads_them(name: str, dims: tuple[object, object]) -> None:
    model = _model(CASES[name], *dims)
    found = _attention(model)
    assert not isinstance(found, str), found
    assert [v.name for v in found.inputs] == ["x"]
    x = np.arange(B * S * W, dtype=np.float64).reshape(B, S, W)
    read = list(model.graph.node[-1].input)
    without = onnx.ModelProto()
    without.CopyFrom(model)
    del without.graph.node[-1], without.graph.output[:]
    without.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    without.graph.output.extend(helper.make_tensor_value_info(v, onnx.TensorProto.DOUBLE, None) for v in read)
    values = ReferenceEvaluator(without).run(None, {"x": x})
    for value, (heads, count, width) in zip(values, found.meaning.operands, strict=True):
        in_place = np.asarray(value)
        if in_place.ndim == 3:
            in_place = in_place.reshape(B, S, N, H).transpose(0, 2, 1, 3)
        rows = x.reshape(B, S, heads.row)
        for head in range(count):
            begin = heads.first + head * heads.step
            np.testing.assert_array_equal(in_place[:, head], rows[:, :, begin : begin + width])


def test_what_others_read_is_read_there() -> None:
    model = _model(CASES["unbind by Gather"])
    model.graph.output.append(helper.make_tensor_value_info("k4", onnx.TensorProto.FLOAT16, None))
    found = _attention(model)
    assert not isinstance(found, str)
    assert "k4" in [v.name for v in found.inputs]


@pytest.mark.parametrize(
    "body",
    [
        # other tokens than those of x
        "r = Reshape(x, other) q, k, v = Split<axis=2, num_outputs=3>(r)",
        # elements of a head do not lie beside each other
        "r = Reshape(x, apart) t = Transpose<perm=[0, 1, 3, 2]>(r) f = Reshape(t, whole) "
        "q, k, v = Split<axis=2, num_outputs=3>(f)",
    ],
)
def test_what_is_no_view_of_tokens_is_not_followed(body: str) -> None:
    more = f", int64[3] other = {{{B * S}, 1, {W}}}, int64[4] apart = {{0, 0, {W // 2}, 2}}"
    more += f", int64[3] whole = {{0, 0, {W}}}"
    text = f"""<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float16[{B}, {S}, {W}] x) => (float16[n, m, {N * H}] y) <{CONSTANTS}{more}> {{
      {body} y = com.microsoft.MultiHeadAttention<num_heads={N}>(q, k, v)
    }}"""
    found = _attention(onnx.parser.parse_model(text))
    assert not isinstance(found, str)
    assert [v.name for v in found.inputs] in (["r"], ["t"])
