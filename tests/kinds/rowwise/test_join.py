"""Rowwise regions with index operations: what joins, what stays apart and why, and what the kernels compute."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cases.models import fuse, outline
from onnxopt.kinds.rowwise import access_order
from tests.fuzz import index_rows as fuzz_index_rows
from tests.support.graphs import graph
from tests.support.kinds.rowwise_models import Fused, difference, fused, session, with_library

ENDS = "int64[1] zero = {0}, int64[1] half = {64}, int64[1] all = {128}, int64[1] last = {-1}"
HEADS = "int64[4] heads = {0, 0, 4, 128}, int64[3] flat = {0, 0, -1}, int64[1] two = {2}"
NORM = "v = Reshape(x, heads) n = RMSNormalization(v, g) t = Transpose<perm = [0, 2, 1, 3]>(n)"
ROTARY = (
    "ac = Mul(t, c) h = Slice(t, zero, half, last) k = Slice(t, half, all, last) nk = Neg(k) "
    "r = Concat<axis = -1>(nk, h) bs = Mul(r, s) y = Add(ac, bs)"
)
IMAGE, CHANNELS = "float[2, 96, 14, 14]", "float[96] g, float[96] b"
TO_LAST = "t = Transpose<perm = [0, 2, 3, 1]>(x)"
WINDOWS = "n = LayerNormalization(z, g) s = Reshape(n, w) t = Transpose<perm = [0, 1, 3, 2, 4, 5]>(s) y = Reshape(t, q)"
SIZES = "int64[6] w = {3, 2, 7, 3, 7, 24}, int64[3] q = {18, 49, 24}"
MAP = (  # of 4 N rows and 4 T columns
    "s = Shape(x) n = Slice(s, n0, n1) l = Slice(s, n2, n3) h = Mul(n, n4) w = Mul(l, n4) "
    "whole = Concat<axis = 0>(h, w, c) m = Reshape<allowzero = 1>(x, whole)"
)
NUMBERS = "int64[1] n0 = {0}, int64[1] n1 = {1}, int64[1] n2 = {2}, int64[1] n3 = {3}, int64[1] n4 = {4}"


def _rolled(first: str) -> str:
    """A map, rolled to the rows and columns that begin at `first`, and its norm."""
    return (
        f"{MAP} a1 = Slice(m, {first}, big, n0) a2 = Slice(m, n0, {first}, n0) a = Concat<axis = 0>(a1, a2) "
        f"b1 = Slice(a, {first}, big, n1) b2 = Slice(a, n0, {first}, n1) b = Concat<axis = 1>(b1, b2) "
        "y = LayerNormalization(b, g)"
    )


ROLLED_SIZES = f"{NUMBERS}, int64[1] back = {{-2}}, int64[1] big = {{9223372036854775807}}, int64[1] c = {{24}}"

STREAMS = "float[N, 7, 96] a, float[N, 5, 96] b, float[32] g, float[32] h"
JOINED = "u = Reshape(a, three) w = Reshape(b, three) {norms} y = Concat<axis = 1>(m, n)"
THREE = "int64[4] three = {0, 0, 3, 32}"

# name: inputs, outputs, body, constants, the operators of each rowwise region
CASES = {
    "norms of two streams": (
        STREAMS, "float[N, 12, 3, 32] y",
        JOINED.format(norms="m = RMSNormalization(u, g) n = RMSNormalization<epsilon = 0.001>(w, h)"), THREE,
        ["Reshape Reshape RMSNormalization RMSNormalization Concat"],
    ),
    "different norms of two streams": (
        STREAMS, "float[N, 12, 3, 32] y",
        JOINED.format(norms="m = LayerNormalization(u, g) n = RMSNormalization(w, h)"), THREE,
        ["Reshape Reshape LayerNormalization RMSNormalization Concat"],
    ),
    "queries and values of three streams": (
        "float[N, 4, 192] a, float[N, 8, 192] b, float[N, 3, 192] d, float[32] g, float[32] h",
        "float[N, 15, 3, 32] y, float[N, 15, 3, 32] z",
        " ".join(
            f"q{x} = Slice({x}, zero, n96, last) r{x} = Reshape(q{x}, three) n{x} = RMSNormalization(r{x}, {g}) "
            f"v{x} = Slice({x}, n96, n192, last) w{x} = Reshape(v{x}, three)"
            for x, g in zip("abd", "ghg", strict=True)
        ) + " y = Concat<axis = 1>(na, nb, nd) z = Concat<axis = 1>(wa, wb, wd)",
        f"{ENDS}, {THREE}, int64[1] n96 = {{96}}, int64[1] n192 = {{192}}",
        ["Slice Reshape RMSNormalization Slice Reshape Slice Reshape RMSNormalization Slice Reshape Slice Reshape"
         " RMSNormalization Slice Reshape Concat Concat"],
    ),
    "parts of a modulation": (
        "float[3, 7, 96] x, float[3, 240] p, float[96] g", "float[3, 7, 96] y",
        "e = Slice(p, n8, n104, last) f = Slice(p, n104, n200, last) u = Unsqueeze(e, one) w = Unsqueeze(f, one) "
        "n = LayerNormalization(x, g) m = Mul(n, u) y = Add(m, w)",
        "int64[1] n8 = {8}, int64[1] n104 = {104}, int64[1] n200 = {200}, int64[1] last = {-1}, int64[1] one = {1}",
        ["Slice Slice Unsqueeze Unsqueeze LayerNormalization Mul Add"],
    ),
    "query norm, heads, rotary embedding": (
        "float[2, 7, 512] x, float[128] g, float[1, 1, 7, 128] c, float[1, 1, 7, 128] s", "float[2, 4, 7, 128] y",
        f"{NORM} {ROTARY}", f"{ENDS}, {HEADS}",
        ["Reshape RMSNormalization Transpose Mul Slice Slice Neg Concat Mul Add"],
    ),
    "the same, dynamic": (
        "float[N, T, 512] x, float[128] g, float[N, 1, T, 128] c, float[N, 1, T, 128] s", "float[N, 4, T, 128] y",
        f"{NORM} {ROTARY}", f"{ENDS}, {HEADS}",
        ["Reshape RMSNormalization Transpose Mul Slice Slice Neg Concat Mul Add"],
    ),
    "key norm, expanded for the heads of a group": (
        "float[N, T, 512] x, float[128] g", "float[N, 4, 3, T, 128] y",
        f"{NORM} u = Unsqueeze(t, two) y = Expand(u, e)", f"{HEADS}, int64[5] e = {{1, 1, 3, 1, 1}}",
        ["Reshape RMSNormalization Transpose Unsqueeze Expand"],
    ),
    "heads to tokens, norm": (
        "float[N, 4, T, 128] x, float[512] g, float[512] b", "float[N, T, 512] y",
        "t = Transpose<perm = [0, 2, 1, 3]>(x) v = Reshape(t, whole) y = LayerNormalization(v, g, b)",
        "int64[3] whole = {0, 0, 512}", ["Transpose Reshape LayerNormalization"],
    ),
    "windows to rows of which each dim is computed": (
        "float[N, T, 4, 4, 24] x, float[24] g", "float[M, K, 24] y",
        "s = Shape(x) a = Slice(s, zero, one) k = Slice(s, one, two) h = Mul(a, four) w = Mul(k, four) "
        "q = Concat<axis = 0>(h, w, row) t = Transpose<perm = [0, 2, 1, 3, 4]>(x) v = Reshape<allowzero = 1>(t, q) "
        "y = LayerNormalization(v, g)",
        "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}, int64[1] row = {24}",
        ["Transpose Reshape LayerNormalization"],
    ),
    "a map of unknown size, rolled back": (
        "float[N, 4, T, 4, 24] x, float[24] g", "float[H, W, 24] y", _rolled("back"), ROLLED_SIZES,
        ["Slice Slice Concat Slice Slice Concat LayerNormalization"],
    ),
    "halves of a product, both outputs": (
        "float[N, 96] x, float[48] g", "float[N, 48] y, float[N, 48] z",
        "a, k = Split<axis = -1, num_outputs = 2>(x) y = RMSNormalization(a, g) q = Sigmoid(k) z = Mul(k, q)", "",
        ["Split RMSNormalization Sigmoid Mul"],
    ),
    "gated product and its mean": (
        "float[N, 96] x", "float[N, 1] y",
        "a, k = Split<axis = -1, num_outputs = 2>(x) q = Sigmoid(k) m = Mul(a, q) y = ReduceMean(m, last)", ENDS,
        ["Split Sigmoid Mul ReduceMean"],
    ),
    "a part of the scores": (
        "float[N, 3, 9, 70] x", "float[N, 3, 9, 64] y", "a = Slice(x, zero, half, last) y = Softmax(a)", ENDS,
        ["Slice Softmax"],
    ),
    "scores with a sink": (
        "float[N, 3, 9, 64] x, float[N, 3, 9, 1] k", "float[N, 3, 9, 65] y",
        "a = Concat<axis = -1>(x, k) y = Softmax(a)", "", ["Concat Softmax"],
    ),
    "padded scores": (
        "float[N, 9, 50] x", "float[N, 9, 64] y", "a = Pad(x, p, f) y = Softmax(a)",
        "int64[6] p = {0, 0, 3, 0, 0, 11}, float f = {-1000}", ["Pad Softmax"],
    ),
    "class token, position, norm, two outputs": (
        "float[N, 9, 40] x, float[N, 1, 40] k, float[10, 40] p, float[40] g", "float[N, 10, 40] y, float[N, 10, 40] z",
        "a = Concat<axis = 1>(k, x) z = Add(a, p) y = LayerNormalization(z, g)", "", ["Concat Add LayerNormalization"],
    ),
    "a view of the sum is read elsewhere too": (
        "float[N, 4, 6, 128] x, float[N, 6, 512] r, float[512] g", "float[N, 2, 3, 512] z, float[N, 2, 3, 512] y",
        "t = Transpose<perm = [0, 2, 1, 3]>(x) v = Reshape(t, whole) s = Add(v, r) z = Reshape(s, rows) "
        "y = LayerNormalization(z, g)",
        "int64[3] whole = {0, 0, 512}, int64[4] rows = {0, 2, 3, 512}",
        ["Transpose Reshape Add Reshape LayerNormalization"],
    ),
    "windows": (
        "float[N, 14, 21, 24] x, float[24] g", "float[M, 49, 24] y",
        "n = LayerNormalization(x, g) r = Reshape(n, w) t = Transpose<perm = [0, 1, 3, 2, 4, 5]>(r) y = Reshape(t, q)",
        "int64[6] w = {-1, 2, 7, 3, 7, 24}, int64[3] q = {-1, 49, 24}", ["LayerNormalization Reshape Transpose"],
    ),
    "windows of a sum that is read elsewhere too": (  # as many bytes, a launch less
        "float[3, 14, 21, 24] x, float[3, 14, 21, 24] r, float[24] g", "float[3, 14, 21, 24] z, float[18, 49, 24] y",
        f"z = Add(x, r) {WINDOWS}", SIZES, ["Add LayerNormalization Reshape Transpose"],
    ),
    "groups of a part of the channels": (
        "float[N, 24, 5, 6] x, float[8] g, float[8] b", "float[N, 8, 5, 6] y",
        "p = Slice(x, eight, sixteen, one) n = GroupNormalization<num_groups = 4>(p, g, b) y = Relu(n)",
        "int64[1] eight = {8}, int64[1] sixteen = {16}, int64[1] one = {1}", ["Slice GroupNormalization Relu"],
    ),
    "the largest of a part": (
        "float[N, 70] x", "int64[N] y", "a = Slice(x, zero, half, last) y = ArgMax<axis = -1, keepdims = 0>(a)", ENDS,
        ["Slice ArgMax"],
    ),
}  # fmt: skip


# What ONNX Runtime itself cannot compute of no rows, or gives another shape.
NOT_EMPTY = ("windows", "gated product and its mean", "groups of a part of the channels", "the largest of a part")


@pytest.mark.parametrize("case", CASES)
def test_what_joins(case: str) -> None:
    inputs, outputs, body, constants, expected = CASES[case]
    with mock.patch.object(access_order, "splits_vectors", return_value=False):  # slow is no reason not to be right
        assert fused(inputs, outputs, body, constants=constants, opset=23).rowwise == expected


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", CASES)
def test_it_computes_the_same(case: str, tmp_path: Path) -> None:
    inputs, outputs, body, constants, _ = CASES[case]
    with mock.patch.object(access_order, "splits_vectors", return_value=False):
        found = fused(inputs, outputs, body, constants=constants, opset=23)
    original = session(found.original)
    with_kernels = with_library(found, tmp_path)
    for n, t in ((3, 5), (1, 1), (0, 4)):
        rng = np.random.default_rng(n)
        sizes = {"N": n, "T": t}
        feeds = {
            i.name: rng.standard_normal([sizes.get(d, d) for d in i.shape]).astype(np.float32)
            for i in original.get_inputs()
        }
        if n == 0 and case in NOT_EMPTY:
            continue
        expected = original.run(None, feeds)
        for run_in in (with_kernels, session(found.optimized)):
            for ours, theirs in zip(run_in.run(None, feeds), expected, strict=True):
                assert difference(ours, theirs, 1e-5, 1e-5) <= 1
        if "[N" not in inputs:
            break


ACROSS = "The fused kernel would read `x` against its memory layout and use little of each memory transaction"


@pytest.mark.parametrize(
    ("inputs", "outputs", "body", "constants", "kept", "reason"),
    [
        (f"{IMAGE} x, {CHANNELS}", "float[2, 14, 14, 96] y", f"{TO_LAST} y = LayerNormalization(t, g, b)", "",
         "LayerNormalization", ACROSS),
        ("float[2, 4, 64] x", "float[2, 64, 4] y", "n = Softmax(x) y = Transpose<perm = [0, 2, 1]>(n)", "",
         "Softmax", "An element of one row would need the reduction of another row"),
        ("float[9, 65] x", "float[9, 64] y", "n = Softmax(x) y = Slice(n, zero, half, last)", ENDS,
         "Softmax", "The outputs cannot be arranged as rows of the reduced length"),
        ("float[9, 64] x, float[9, 64] z", "float[9, 128] y", "n = Softmax(x) y = Concat<axis = -1>(n, z)", "",
         "Softmax", "A part of a Concat or Pad begins or ends in the middle of several rows"),
        ("float[9, 64] x", "float[9, 64] y, float[9, 32] z", "y = Softmax(x) z = Slice(y, zero, part, last)",
         f"{ENDS}, int64[1] part = {{32}}", "Softmax",
         "The outputs of the fused kernel have different numbers of elements"),
        ("float[9, 1, 64] x", "float[9, 40, 64] y", "n = Softmax(x) y = Expand(n, e)", "int64[3] e = {9, 40, 64}",
         "Softmax",
         "Each row would be reduced again for every place it is broadcast to (40 times; the limit is 8)"),
        ("float[9, 64] x, float[9, 1] k", "float[9, 65] y", "a = Concat<axis = -1>(x, k) y = Softmax(a)", "",
         "Softmax",
         "A part of a Concat or Pad would begin or end inside a 16-byte vector, which makes loads slow"),
        ("float[9, 4, 64] x, float[9, 4, 64] r", "float[9, 4, 64] s, float[36, 64] z, float[36, 64] y",
         "e = Exp(x) t = Slice(e, zero, part, last) k = Concat<axis = -1>(t, t) s = Add(k, r) z = Reshape(s, rows) "
         "y = Softmax(z)",
         f"{ENDS}, int64[1] part = {{32}}, int64[2] rows = {{36, 64}}", "Softmax",
         "The result of the Reshape `z` and what it is of are both read elsewhere too"),
        (f"{IMAGE} x, {CHANNELS}", f"{IMAGE} y",
         f"{TO_LAST} n = LayerNormalization(t, g, b) y = Transpose<perm = [0, 3, 1, 2]>(n)", "",
         "LayerNormalization", ACROSS),
        ("float[3, 14, 21, 24] x, float[3, 14, 21, 24] r, float[3, 14, 21, 24] c, float[24] g",
         "float[3, 14, 21, 24] z, float[18, 49, 24] y", f"a = Add(x, r) z = Add(a, c) {WINDOWS}", SIZES,
         "Add Add LayerNormalization Reshape",
         "The fused kernel would move 677472 bytes; the separate kernels move 592800"),
        ("float[9, 33] x", "float[9, 33] y", "n = Softmax(x) y = Slice(n, last, low, last, last)",
         f"{ENDS}, int64[1] low = {{-1000}}", "Softmax", ACROSS),
        ("float[N, 4, T, 4, 24] x, float[24] g", "float[H, W, 24] y", _rolled("n2"), ROLLED_SIZES,
         "LayerNormalization", "A part of a Concat or Pad begins or ends inside a dim of unknown size"),
    ],
    ids=["transposed reads", "rows of the result are others", "part of the result", "beside another", "two sizes",
         "broadcast", "sink", "two copies", "between transposes", "three operands twice", "turned around", "rolled"],
)  # fmt: skip
def test_what_stays_apart(inputs: str, outputs: str, body: str, constants: str, kept: str, reason: str) -> None:
    found = fused(inputs, outputs, body, constants=constants, opset=23)
    assert found.rowwise == [kept]
    assert reason in [r.reason for r in found.plan.refusals]


@pytest.mark.usefixtures("library")
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
@example(521)
@example(915)
def test_random_graphs(seed: int) -> None:
    graph = fuzz_index_rows.Graph(seed)
    proto, wide = graph.model(), graph.model("float32")
    model = ir.from_proto(proto)
    plan = fuse(model)
    kernels = tuple(dataclasses.replace(k, cpu=True) for k in outline(model, plan))
    found = Fused(plan, kernels, proto.SerializeToString(), ir.to_proto(model).SerializeToString())
    original = session(wide.SerializeToString())
    limit = 1e-4 if graph.dtype == "float32" else 3e-2
    with tempfile.TemporaryDirectory() as folder:
        ours = with_library(found, Path(folder))
        for size in (5, 1):
            rng = np.random.default_rng(size)
            feeds = {
                i.name: rng.uniform(-2, 2, [d if isinstance(d, int) else size for d in i.shape]).astype(graph.dtype)
                for i in original.get_inputs()
            }
            expected = original.run(None, {k: v.astype(np.float32) for k, v in feeds.items()})
            for a, b in zip(ours.run(None, feeds), expected, strict=True):
                assert difference(a, b, limit, limit) <= 1


def test_a_view_whose_dims_are_read_at_run_time_stays_apart() -> None:
    """GroupNorm as torch's TorchScript exporter writes it, with dynamic height and width, before a map in NHWC."""
    model = graph(
        "float[N, 8, H, W] x, int64[4] s", "float[N, H, W, 8] y",
        "g = Reshape(x, groups) n = InstanceNormalization(g, one, none) b = Reshape(n, s) "
        "y = Transpose<perm = [0, 2, 3, 1]>(b)",
        constants="int64[3] groups = {0, 4, -1}, float[4] one = {1, 1, 1, 1}, float[4] none = {0, 0, 0, 0}",
    )  # fmt: skip
    plan = fuse(model)
    reasons = [refusal.reason.split(": ")[0] for refusal in plan.refusals]
    assert reasons == ["The shape of the Reshape `b` is computed at run time"]
    outline(model, plan)  # a kernel that had taken the Reshape could not tell its shape
