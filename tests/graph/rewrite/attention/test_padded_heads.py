"""Heads that no fused kernel takes get zeros in the weights: the same results, and where they cannot, a reason."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import MatchResult

from onnxopt.graph.rewrite import to_portable, weights
from onnxopt.graph.rewrite.attention import head_sizes
from onnxopt.graph.rewrite.attention.head_axis import Mark, across, widen
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.infer import InferShapesPass
from tests.support import graphs
from tests.support.attention.attention_graphs import ops, rewritten

WIDTH, HEADS = 24, 2
_SIZES = ((2, 33), (1, 1), (3, 17))  # batch and length


@dataclasses.dataclass(frozen=True)
class Attention:
    """Attention of x (dims, 24) to x or to memory (dims, 24) with 2 heads, and the lines that tests replace.

    projections: "{n}l = ..." for n of q, k and v, or a whole text with q, k and v. size, v_size: elements of a head.
    scores: from q and kt to `s`, without the scale. masked: from `s` to `p`. end: from `a` (B, N, S, V) to y.
    """

    dims: str = "batch, length"
    keys_from: str = "x"
    inputs: str = ""
    outputs: str = "float16[] y"
    size: int = 20
    v_size: int = 20
    projection: str = "{n}m = MatMul({x}, w{n}) {n}l = Add({n}m, b{n})"
    shape: str = "{n}r = Reshape({n}l, heads_{n}) {n} = Transpose<perm = [0, 2, 1, 3]>({n}r)"
    projections: str = ""
    keys: str = "kt = Transpose<perm = [0, 1, 3, 2]>(k)"
    scores: str = "s0 = MatMul(q, kt) s = Mul(s0, scale)"
    weights: str = "p = Softmax<axis = -1>(s)"
    end: str = "at = Transpose<perm = [0, 2, 1, 3]>(a) af = Reshape(at, flat) yo = MatMul(af, wo) y = Add(yo, bo)"
    constants: str = ""
    bias: bool = True
    scale: float = 0.0  # of the factors in `scores`; 0 stands for the usual one
    dtype: str = "float16"

    def arrays(self) -> dict[str, np.ndarray]:
        """Weights and biases, of float16's precision."""
        rng, found = np.random.default_rng(0), {}
        for name, size in (("q", self.size), ("k", self.size), ("v", self.v_size)):
            found[f"w{name}"] = rng.standard_normal((WIDTH, HEADS * size)) * 0.4
            found[f"b{name}"] = rng.standard_normal(HEADS * size) * self.bias
        found["wo"], found["bo"] = rng.standard_normal((HEADS * self.v_size, WIDTH)) * 0.2, rng.standard_normal(WIDTH)
        return {name: array.astype(np.float16) for name, array in found.items()}

    def model(self) -> ir.Model:
        arrays = self.arrays()
        arrays["wqkv"] = np.concatenate([arrays[f"w{n}"] for n in "qkv"], axis=1)
        arrays["bqkv"] = np.concatenate([arrays[f"b{n}"] for n in "qkv"])
        arrays |= {f"w{n}t": np.ascontiguousarray(arrays[f"w{n}"].T) for n in "qkvo"}
        arrays["scale"], arrays["root"] = (np.array(self._scale() ** p, np.float16) for p in (1, 0.5))
        arrays["zero"], arrays["half"], arrays["least"] = (np.array(n, np.float16) for n in (0, 0.5, -np.inf))
        lines = [self.projections]
        for name in "" if self.projections else "qkv":
            source = "x" if name == "q" else self.keys_from
            lines.append(self.projection.format(n=name, x=source))
            lines.append(self.shape.format(n=name))
        lines += [self.keys, self.scores, self.weights, "a = MatMul(p, v)", self.end]
        body = "\n".join(lines)
        arrays = {name: array for name, array in arrays.items() if name in _words(body)}
        t, size, v_size = self.dtype, self.size, self.v_size
        inputs = f"{t}[{self.dims}, {WIDTH}] x{self.inputs}"
        inputs += "".join(f", {t}[{', '.join(map(str, a.shape))}] {name}" for name, a in arrays.items())
        constants = [f"int64[4] heads_{n} = {{0, -1, {HEADS}, {s}}}" for n, s in zip("qkv", (size, size, v_size))]
        constants += [f"int64[3] flat = {{0, -1, {HEADS * v_size}}}", f"int64[5] qkv = {{0, -1, 3, {HEADS}, {size}}}"]
        constants += [f"int64[3] three = {{{HEADS * size}, {HEADS * size}, {HEADS * v_size}}}"]
        constants += [f"int64 i{k} = {{{k}}}" for k in range(3)] + ["int64[1] first = {0}", "int64[2] rows = {-1, 24}"]
        constants += [self.constants] if self.constants else []
        text = self.outputs.replace("float16", t)
        model = graphs.graph(inputs.replace("[]", ""), text, body, constants=", ".join(constants))
        for value in [v for v in model.graph.inputs if v.name in arrays]:
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(arrays[str(value.name)].astype(value.dtype.numpy()), name=value.name)
            model.graph.register_initializer(value)
        InferShapesPass()(model)
        return model

    def _scale(self) -> float:
        return self.scale or 1 / math.sqrt(self.size)

    def expected(self, x: np.ndarray, memory: np.ndarray, shown: np.ndarray | None = None) -> np.ndarray:
        """The result in float64. shown (B, 1, S, T): rows of which nothing is shown attend to nothing."""
        wide = {name: array.astype(np.float64) for name, array in self.arrays().items()}

        def heads(source: np.ndarray, n: str) -> np.ndarray:
            made = source.astype(np.float64) @ wide[f"w{n}"] + wide[f"b{n}"]
            return made.reshape(*made.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)

        q, k, v = heads(x, "q"), heads(memory, "k"), heads(memory, "v")
        scores = q @ k.transpose(0, 1, 3, 2) * self._scale()
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        powers *= 1 if shown is None else shown
        sums = powers.sum(axis=-1, keepdims=True)
        attended = np.divide(powers, sums, out=np.zeros_like(powers), where=sums > 0) @ v
        return attended.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1) @ wide["wo"] + wide["bo"] * ("bo" in self.end)


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


def drawn(*shape: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*shape, WIDTH)).astype(np.float16)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    """Within what rounding every value to float16 amounts to."""
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.astype(np.float64), expected, atol=0.02, rtol=5e-3)


def _is_padded(model: ir.Model) -> bool:
    return any("/heads" in name for name in model.graph.initializers)


_NO_BIAS = {
    "bias": False,
    "projection": "{n}l = MatMul({x}, w{n})",
    "end": "at = Transpose<perm = [0, 2, 1, 3]>(a) af = Reshape(at, flat) y = MatMul(af, wo)",
}
_GEMM = {
    "dims": "2, 33",
    "projection": "{n}2 = Reshape({x}, rows) {n}l = Gemm<transB = 1>({n}2, w{n}t, b{n})",
    "end": "at = Transpose<perm = [0, 2, 1, 3]>(a) af = Reshape(at, rows_of_40) y2 = Gemm<transB = 1>(af, wot, bo) "
    "y = Reshape(y2, back)",
    "shape": "{n}r = Reshape({n}l, of_gemm) {n} = Transpose<perm = [0, 2, 1, 3]>({n}r)",
    "constants": "int64[4] of_gemm = {2, -1, 2, 20}, int64[2] rows_of_40 = {-1, 40}, int64[3] back = {2, -1, 24}",
}
_SPLIT = """
  m = MatMul(x, wqkv) l = Add(bqkv, m) ql, kl, vl = Split<axis = 2>(l, three)
  qr = Reshape(ql, heads_q) q = Transpose<perm = [0, 2, 1, 3]>(qr)
  kr = Reshape(kl, heads_k) k = Transpose<perm = [0, 2, 1, 3]>(kr)
  vr = Reshape(vl, heads_v) v = Transpose<perm = [0, 2, 1, 3]>(vr)
"""
_GATHER = """
  m = MatMul(x, wqkv) l = Add(m, bqkv) r = Reshape(l, qkv) t = Transpose<perm = [2, 0, 3, 1, 4]>(r)
  q = Gather<axis = 0>(t, i0) k = Gather<axis = 0>(t, i1) v = Gather<axis = 0>(t, i2)
"""
_SQUEEZE = """
  m = MatMul(x, wqkv) l = Add(m, bqkv) r = Reshape(l, qkv) t = Transpose<perm = [2, 0, 3, 1, 4]>(r)
  q5, k5, v5 = Split<axis = 0, num_outputs = 3>(t)
  q = Squeeze(q5, first) k = Squeeze(k5, first) v = Squeeze(v5, first)
"""
FORMS = {
    "with biases": Attention(),
    "no biases": Attention(**_NO_BIAS),
    "heads of 4": Attention(size=4, v_size=4),
    "heads of 36": Attention(size=36, v_size=36),
    "values of another size": Attention(v_size=12),
    "values of a size that fits": Attention(v_size=16),
    "queries of a size that fits": Attention(size=16),
    "other keys": Attention(inputs=", float16[batch, other, 24] memory", keys_from="memory"),
    "scaled q and k": Attention(scores="q2 = Mul(q, root) k2 = Mul(kt, root) s = MatMul(q2, k2)"),
    "scaled projection": Attention(
        shape="{n}h = Mul({n}l, half) {n}2 = Div({n}h, half) {n}r = Reshape({n}2, heads_{n}) "
        "{n} = Transpose<perm = [0, 2, 1, 3]>({n}r)"
    ),
    "another scale": Attention(scale=0.5),
    "Gemm": Attention(**_GEMM),
    "merged and split": Attention(projections=_SPLIT),
    "merged and split by selecting": Attention(projections=_GATHER),
    "merged and split in three": Attention(projections=_SQUEEZE),
    "keys in three dims": Attention(
        dims="2, 33",
        keys="k3 = Reshape(k, to3) t3 = Transpose<perm = [0, 2, 1]>(k3) kt = Reshape(t3, to4)",
        constants="int64[3] to3 = {-1, 33, 20}, int64[4] to4 = {2, 2, 20, 33}",
    ),
    "shapes that are computed": Attention(
        shape="sh{n} = Shape<start = 0, end = 2>({n}l) t{n} = Concat<axis = 0>(sh{n}, rest) {n}r = Reshape({n}l, t{n}) "
        "{n} = Transpose<perm = [0, 2, 1, 3]>({n}r)",
        constants="int64[2] rest = {2, 20}",
    ),
    "static": Attention(dims="2, 40"),
}


def _feeds(form: Attention, batch: int, length: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    x = drawn(batch, length)
    memory = drawn(batch, 19, seed=4) if form.keys_from == "memory" else x
    return ({"x": x, "memory": memory} if memory is not x else {"x": x}), memory


@pytest.mark.parametrize("name", FORMS)
def test_zeros_in_the_weights(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    model = form.model()
    found, done = rewritten(model, tmp_path)
    assert (done.applied["heads"], done.applied["attention"], done.refusals) == (1, 0, ())
    assert not {"Softmax", "Slice", "Pad"} & set(ops(found))
    assert _is_padded(found)
    (node,) = (n for n in found.graph if n.op_type in ("Attention", "MultiHeadAttention"))
    assert node.attributes["scale"].value == pytest.approx(form._scale(), rel=1e-6)
    sizes = [(2, 33)] if "2, 33" in form.dims else [(2, 40)] if "2, 40" in form.dims else _SIZES
    for batch, length in sizes:
        feeds, memory = _feeds(form, batch, length)
        expected = form.expected(feeds["x"], memory)
        close(graphs.run(model, feeds)[0].reshape(expected.shape), expected)
        close(graphs.run(found, feeds)[0].reshape(expected.shape), expected)
    to_portable(found)
    assert {n.domain for n in found.graph} == {""}
    close(graphs.run(found, feeds)[0].reshape(expected.shape), expected)


def test_the_weights_are_those_of_before_and_zeros(tmp_path: Path) -> None:
    form = Attention()
    found, _ = rewritten(form.model(), tmp_path, leave_out=("merge",))
    arrays, products = form.arrays(), [n for n in found.graph if n.op_type == "MatMul"]
    for node, name in zip(products, ("wq", "wk", "wv", "wo"), strict=True):
        array = node.inputs[1].const_value.numpy()  # type: ignore[union-attr]
        array = array.T if name == "wo" else array
        parts = array.reshape(WIDTH, HEADS, 24)
        before = arrays[name].T if name == "wo" else arrays[name]
        np.testing.assert_array_equal(parts[..., :20].reshape(WIDTH, -1), before)
        assert not parts[..., 20:].any()


def test_rows_that_a_mask_hides(tmp_path: Path) -> None:
    form = Attention(
        inputs=", bool[batch, 1, length, length] mask",
        scores="m = Where(mask, zero, least) s0 = MatMul(q, kt) s1 = Mul(s0, scale) s = Add(s1, m)",
        weights="p0 = Softmax<axis = -1>(s) bad = IsNaN(p0) p = Where(bad, zero, p0)",
    )
    model = form.model()
    found, done = rewritten(model, tmp_path)
    assert done.applied["heads"] == 1
    assert not {"Softmax", "Slice"} & set(ops(found))
    assert _is_padded(found)
    shown = np.random.default_rng(2).random((2, 1, 17, 17)) < 0.5
    shown[0, 0, 3] = False
    feeds = {"x": drawn(2, 17), "mask": shown}
    for each in (model, found):
        close(graphs.run(each, feeds)[0], form.expected(feeds["x"], feeds["x"], shown))


HIDDEN = "a2 = Where(hidden, zero, a) at = Transpose<perm = [0, 2, 1, 3]>(a2) af = Reshape(at, flat) y = MatMul(af, wo)"


@pytest.mark.parametrize("end", ["y = Identity(a)", "at = Tanh(a) y = Neg(at)", HIDDEN])
def test_a_result_that_no_weight_reads_is_cut(end: str, tmp_path: Path) -> None:
    model = Attention(end=end, inputs=", bool[1, 1, 1, 20] hidden").model()
    found, done = rewritten(model, tmp_path)
    assert done.applied["heads"] == 1
    assert "Slice" in ops(found)
    assert "Softmax" not in ops(found)
    assert _is_padded(found)
    for batch, length in _SIZES:
        feeds = {"x": drawn(batch, length), "hidden": np.arange(20).reshape(1, 1, 1, 20) % 3 == 0}
        close(graphs.run(found, feeds)[0], graphs.run(model, feeds)[0].astype(np.float64))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_both_floats_of_16_bit(dtype: str, tmp_path: Path) -> None:
    found, done = rewritten(Attention(dtype=dtype).model(), tmp_path)
    assert done.applied["heads"] == 1
    made = [v for v in found.graph.initializers.values() if "/heads" in str(v.name)]
    assert made
    assert {v.dtype for v in made} == {ir.DataType[dtype.upper()]}


_SHARED = "again = MatMul(x, wq) z = Relu(again)"
MISSES = {
    "float32": (Attention(dtype="float"), "only 16-bit floats are padded"),
    "too large": (Attention(size=260, v_size=260), "the faster kernels take up to 256 elements"),
    "one token": (Attention(dims="1, 1"), "the zeros would move more bytes"),
    "one token, and a memory of any length": (
        Attention(dims="batch, 1", keys_from="memory", inputs=", float16[batch, other, 24] memory"),
        "the zeros would move more bytes",
    ),
    "few tokens": (Attention(dims="8, 8"), "the zeros would move more bytes"),
    "many tokens, a short memory": (
        Attention(dims="1, 64", keys_from="memory", inputs=", float16[1, 2, 24] memory"),
        "the zeros would move more bytes",
    ),
    "another reader of v": (
        Attention(shape=Attention.shape + " {n}z = Exp({n})", outputs="float16[] y, float16[] vz"),
        "Exp `vz` reads `v`",
    ),
    "another reader of a weight": (
        Attention(end=f"{Attention.end} {_SHARED}", outputs="float16[] y, float16[] z"),
        "the weight `wq` has other readers",
    ),
    "a norm of q": (
        Attention(shape="{n}h = Tanh({n}l) {n}r = Reshape({n}h, heads_{n}) {n} = Transpose<perm = [0, 2, 1, 3]>({n}r)"),
        "Tanh `",
    ),
    "a residual before the heads": (
        Attention(projection="{n}m = MatMul({x}, w{n}) {n}l = Add({n}m, more)", inputs=", float16[40] more"),
        "neither operand is a constant",
    ),
    "one term for all": (
        Attention(projection="{n}m = MatMul({x}, w{n}) {n}l = Add({n}m, half)"),
        "has not one term for each element",
    ),
    "a factor each": (
        Attention(projection="{n}m = MatMul({x}, w{n}) {n}l = Mul({n}m, b{n})"),
        "the constant is more than one factor",
    ),
    "an infinite factor": (
        Attention(projection="{n}m = MatMul({x}, w{n}) {n}l = Mul({n}m, least)"),
        "the factor is -inf",
    ),
    "q that is an input": (
        Attention(
            projections="k0 = MatMul(x, wk) kr = Reshape(k0, heads_k) k = Transpose<perm = [0, 2, 1, 3]>(kr) "
            "v0 = MatMul(x, wv) vr = Reshape(v0, heads_v) v = Transpose<perm = [0, 2, 1, 3]>(vr)",
            inputs=", float16[batch, 2, length, 20] q",
        ),
        "`q` is an input or output of the graph",
    ),
    "q that is an output": (Attention(outputs="float16[] y, float16[] q"), "`q` is an input or output of the graph"),
    "q that masks": (
        Attention(keys_from="memory", inputs=", float16[batch, 20, 24] memory",
                  scores="s0 = MatMul(q, kt) s1 = Mul(s0, scale) s = Add(s1, q)"),
        "`q` is an input or output of the graph, or the mask",
    ),
    "a reader in a subgraph": (
        Attention(inputs=", bool c", outputs="float16[] y, float16[] z", end=f"{Attention.end} z = If (c) <"
                  "then_branch = g1 () => (float16[] r) { r = Transpose<perm = [0, 1, 3, 2]>(q) }, "
                  "else_branch = g2 () => (float16[] o) { o = Transpose<perm = [0, 1, 2, 3]>(q) }>"),
        "reads `q` in a subgraph",
    ),
    "a weight that is computed": (
        Attention(projection="w{n}a = Abs(u{n}) {n}l = MatMul({x}, w{n}a)",
                  inputs="".join(f", float16[24, 40] u{n}" for n in "qkv")),
        "its second operand is not a constant matrix",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_what_is_in_the_way_is_said(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form, reason = MISSES[name]
    model = form.model()
    monkeypatch.setattr(head_sizes.DotProductOfOwnKernel, "check", lambda *_, **__: MatchResult().fail("left out"))
    found, done = rewritten(model, tmp_path)
    (refusal,) = done.refusals
    assert refusal.reason.startswith("not recognised as attention: heads have ")
    assert "zeros cannot pad them" in refusal.reason
    assert reason in refusal.reason
    assert done.applied["heads"] == 0
    assert "Softmax" in ops(found)
    assert not _is_padded(found)


def test_the_family_can_be_left_out(tmp_path: Path) -> None:
    model = Attention().model()
    found, done = rewritten(model, tmp_path, leave_out=("heads",))
    assert "Softmax" in ops(found)
    assert not _is_padded(found)
    assert done.applied["attention"] == 1
    found, done = rewritten(model, tmp_path, leave_out=("attention",))
    assert done.applied["heads"] == 1
    assert "Softmax" not in ops(found)


def test_heads_that_fit_are_left_alone(tmp_path: Path) -> None:
    _, done = rewritten(Attention(size=16, v_size=24).model(), tmp_path)
    assert (done.applied["heads"], done.applied["attention"]) == (0, 1)


def test_large_weights_go_to_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_IN_MEMORY", 64)
    form = Attention()
    found, _ = rewritten(form.model(), tmp_path)
    assert any(isinstance(v.const_value, ir.ExternalTensor) for v in found.graph.initializers.values())
    ir.external_data.load_to_model(found)
    x = drawn(2, 17)
    close(graphs.run(found, {"x": x})[0], form.expected(x, x))


def test_a_target_that_copies_the_axis_which_gets_wider(tmp_path: Path) -> None:
    """Where 0 in a Reshape's target stands for the axis of the heads, the copy is written out."""
    model = graphs.graph(
        "float[20, 20] x", "float[1, 20, 20] y", "y = Reshape(x, target)", constants="int64[3] target = {1, 0, 20}"
    )
    InferShapesPass()(model)
    (node,) = model.graph
    x, y, mark = node.inputs[0], node.outputs[0], Mark(2, 20, 24)
    assert x is not None
    assert across(node, y, mark) == [(x, Mark(1, 20, 24))]
    widen(node, {y: mark, x: mark.at(1)}, Joiner(tmp_path))
    assert node.inputs[1].const_value.numpy().tolist() == [1, 20, 24]  # type: ignore[union-attr]
