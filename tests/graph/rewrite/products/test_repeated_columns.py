"""Repeated columns of products: what is multiplied once, what stays, where it pays, and that nothing changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, numpy_dtype, text_dtype
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.products import repeated_columns
from tests.support.graphs import graph, hold, run

WEIGHTS = {
    "w": (6, 8, 1), "w2": (6, 8, 1, 1), "w3": (6, 8, 1, 1, 1), "k": (6, 8, 3), "m": (8, 6), "t": (6, 8), "b": (6,),
    "c": (1, 6), "z": (6, 11, 1), "big": (1, 3, 4, 5), "s": (6,),
    "g2": (1, 3, 1), "v1": (1, 8, 1), "v2": (1, 8, 1), "n": (5, 6),
    "half": (6, 4, 1), "z2": (6, 6, 1), "n7": (7, 6), "twos": (1, 3, 4, 5), "roi": (8,),
}  # fmt: skip
INPUTS = {
    "points": "{}[B, 5, N] x, {}[B, 3, 1] g",
    "map": "{}[B, 5, H, W] x, {}[B, 3, 1, 1] g, {}[1, 3, 1, W] row",
    "fixed": "{}[B, 5, 4, 5] x, {}[B, 3, 1, 1] g",
    "volume": "{}[B, 5, D, H, W] x, {}[B, 3, 1, 1, 1] g",
    "rows": "{}[B, N, 5] x, {}[B, 1, 3] g",
    "matrix": "{}[N, 5] x, {}[1, 3] g",
    "shape": "{}[B, 5, N] x, {}[B, 3, 1] g, int64[3] shape",
}
SIZES = {"B": 3, "N": 7, "H": 4, "W": 5, "D": 2}
_AXIS_1 = "a = Shape<start = 0, end = 2>(g) p = Shape<start = 2>(x) d = Concat<axis = 0>(a, p) "
_POINTS = _AXIS_1 + "e = Expand(g, d) j = Concat<axis = 1>(x, e) "
_SIZES = _AXIS_1 + "e = Resize<mode = {}>(g, , , d) j = Concat<axis = 1>(x, e) y = Conv(j, w2, b)"
_ROWS = "p = Shape<start = 0, end = 2>(x) q = Shape<start = 2>(g) d = Concat<axis = 0>(p, q) e = Expand(g, d) "
_MATRIX = "p = Shape<start = 0, end = 1>(x) q = Shape<start = 1>(g) d = Concat<axis = 0>(p, q) e = Expand(g, d) "
_MATRIX += "j = Concat<axis = 1>(x, e) "


def _model(inputs: str, body: str, dtype: str = "float32", outputs: str = "{} y") -> ir.Model:
    text, rng = text_dtype(dtype), np.random.default_rng(1)
    arrays = {name: rng.standard_normal(dims) / 2 for name, dims in WEIGHTS.items()} | {"big": np.ones(WEIGHTS["big"])}
    arrays["twos"] = 2 * arrays["big"]
    arrays["s"] = np.abs(arrays["s"])
    held = [f"{text}[{', '.join(map(str, a.shape))}] {name}" for name, a in arrays.items()]
    made = graph(", ".join([INPUTS[inputs].replace("{}", text), *held]), outputs.replace("{}", f"{text}[]"), body)
    hold(made, arrays, numpy_dtype(dtype))
    return made


def _rewritten(source: ir.Model, folder: Path, size: int = 1 << 24) -> tuple[ir.Model, int]:
    """size: what is expected of every symbolic dim."""
    found = source.clone()
    return found, rewrite(found, folder, usual=dict.fromkeys(SIZES, size)).applied["repeated_columns"]


def _check(source: ir.Model, found: ir.Model, dtype: str = "float32") -> None:
    for turn in range(2):
        rng = np.random.default_rng(turn)
        sizes = {name: size + turn for name, size in SIZES.items()}
        feeds = {
            str(v.name): rng.standard_normal([sizes.get(str(d), d) for d in v.shape]).astype(numpy_dtype(dtype))  # type: ignore[union-attr]
            for v in source.graph.inputs
        }
        feeds[min(feeds, key=lambda name: name[0] != "x")].flat[:2] = np.inf, np.nan
        for expected, result in zip(run(source, feeds), run(found, feeds), strict=True):
            limit = 2e-2 if dtype == "float16" else 1e-5
            np.testing.assert_allclose(result, expected, rtol=limit, atol=limit)


APPLIES = {  # what is tested -> inputs and body
    "points": ("points", _POINTS + "y = Conv(j, w, b)"),
    "no bias": ("points", _POINTS + "r = Conv(j, w) y = Relu(r)"),
    "two products": ("points", _POINTS + "h = Conv(j, v2) r = Conv<strides = [2]>(j, v1) y = Concat<axis = 2>(h, r)"),
    "repeated first": ("points", _POINTS.replace("x, e", "e, x") + "y = Conv(j, w, b)"),
    "several parts": (
        "points",
        _AXIS_1 + "e = Expand(g, d) f = Expand(g2, d) j = Concat<axis = 1>(e, x, f) y = Conv(j, z)",
    ),
    "a result of two readers": ("points", _POINTS + "h = Conv(j, w, b) y = Sub(h, h)"),
    "norm": ("points", _POINTS + "h = Conv(j, w, b) y = BatchNormalization(h, s, b, b, s)"),
    "nearest": ("map", _SIZES.format('"nearest"')),
    "linear": ("map", _SIZES.format('"linear"')),
    "corners": ("map", _SIZES.format('"linear", coordinate_transformation_mode = "align_corners"')),
    "map": ("map", _AXIS_1 + "e = Expand(g, d) j = Concat<axis = 1>(e, x) y = Conv(j, w2)"),
    "one row of all images": (
        "map",
        "i = Shape<start = 2>(x) q = Shape<start = 1, end = 2>(row) a = Shape<end = 1>(x) "
        "d = Concat<axis = 0>(a, q, i) e = Expand(row, d) j = Concat<axis = 1>(x, e) y = Conv(j, w2, b)",
    ),
    "Tile": (
        "points",
        "i = Shape<start = 2>(g) p = Shape<start = 2>(x) d = Concat<axis = 0>(i, i, p) e = Tile(g, d) "
        "j = Concat<axis = 1>(x, e) y = Conv(j, w, b)",
    ),
    "times ones": ("fixed", "e = Mul(g, big) j = Concat<axis = 1>(x, e) y = Conv(j, w2, b)"),
    "volume": ("volume", _AXIS_1 + "e = Expand(g, d) j = Concat<axis = 1>(x, e) y = Conv(j, w3, b)"),
    "MatMul": ("rows", _ROWS + "j = Concat<axis = -1>(x, e) h = MatMul(j, m) y = Add(h, b)"),
    "Gemm": ("matrix", _MATRIX + "y = Gemm(j, m, b)"),
    "transposed": ("matrix", _MATRIX + "y = Gemm<transB = 1>(j, t, c)"),
    "a bias of rows": ("matrix", _MATRIX + "r = MatMul(x, n) y = Gemm<alpha = 0.5, beta = 2.0>(j, m, r)"),
}
STAYS = {
    "padding": ("points", _POINTS + "y = Conv<pads = [1, 1]>(j, w, b)"),
    "auto_pad": ("points", _POINTS + 'y = Conv<auto_pad = "SAME_UPPER", strides = [2]>(j, w, b)'),
    "a window of three": ("points", _POINTS + "y = Conv(j, k, b)"),
    "groups": ("points", _POINTS + "y = Conv<group = 2>(j, half, b)"),
    "another reader": ("points", _POINTS + "h = Conv(j, w, b) r = ReduceSum(j) y = Add(h, r)"),
    "a weight that is read elsewhere": ("points", _POINTS + "h = Conv(j, w, b) r = ReduceSum(w) y = Add(h, r)"),
    "other sizes": ("shape", "e = Expand(g, shape) j = Concat<axis = 1>(x, e) y = Conv(j, w, b)"),
    "nothing else": ("points", _AXIS_1 + "e = Expand(g, d) j = Concat<axis = 1>(e, e) y = Conv(j, z2)"),
    "cubic": ("map", _SIZES.format('"cubic"')),
    "crops": (
        "map",
        _SIZES.format('"linear", coordinate_transformation_mode = "tf_crop_and_resize"').replace("(g, ,", "(g, roi,"),
    ),
    "times twos": ("fixed", "e = Mul(g, twos) j = Concat<axis = 1>(x, e) y = Conv(j, w2, b)"),
    "rows": ("rows", "j = Concat<axis = 1>(x, x) y = MatMul(j, n)"),
    "columns as rows": ("matrix", _MATRIX + "y = Gemm<transA = 1>(j, n7, b)"),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", APPLIES)
def test_repeated_columns_are_multiplied_once(name: str, dtype: str, tmp_path: Path) -> None:
    source = _model(*APPLIES[name], dtype)
    found, count = _rewritten(source, tmp_path)
    assert count == (2 if name == "two products" else 1)
    assert not any(node.op_type in ("Expand", "Resize", "Tile") for node in found.graph)
    if dtype != "bfloat16":  # ONNX Runtime's CPU provider has no such products
        _check(source, found, dtype)


@pytest.mark.parametrize("name", STAYS)
def test_others_stay(name: str, tmp_path: Path) -> None:
    assert _rewritten(_model(*STAYS[name]), tmp_path)[1] == 0


def test_a_result_of_the_graph_stays(tmp_path: Path) -> None:
    source = _model("points", _POINTS + "y = Conv(j, w, b)", outputs="{} y, {} j")
    assert _rewritten(source, tmp_path)[1] == 0


@pytest.mark.parametrize(
    ("columns", "repeated", "outputs", "rows", "pays"),
    [
        pytest.param(64, 1024, 512, 2048, True, id="points"),
        pytest.param(64, 1024, 512, 64, False, id="few points"),
        pytest.param(1024, 256, 256, 33 * 33, False, id="a small map"),
        pytest.param(1024, 256, 256, 129 * 129, True, id="a large map"),
        pytest.param(64, 8, 512, 1 << 16, False, id="few columns"),
    ],
)
@pytest.mark.parametrize("size", ["{n}", "N"], ids=["stated", "expected"])
def test_where_it_pays(
    columns: int, repeated: int, outputs: int, rows: int, pays: bool, size: str, tmp_path: Path
) -> None:
    n = size.replace("{n}", str(rows))
    x = (
        f"float16[2, {columns // 2}, {n}] x, float16[2, {columns // 2}, {n}] u"
        if columns > 64
        else f"float16[2, {columns}, {n}] x"
    )
    body = _POINTS.replace("(x, e)", "(x, u, e)") if columns > 64 else _POINTS
    source = graph(
        f"{x}, float16[2, {repeated}, 1] g, float16[{outputs}, {columns + repeated}, 1] w", "float16[] y",
        body + "y = Conv(j, w)",
    )  # fmt: skip
    hold(source, {"w": np.ones((outputs, columns + repeated, 1))}, np.float16)
    assert _rewritten(source, tmp_path, rows)[1] == pays


def test_without_sizes_the_concat_stays(tmp_path: Path) -> None:
    source = _model("points", _POINTS + "y = Conv(j, w, b)")
    assert rewrite(source, tmp_path).applied["repeated_columns"] == 0


def test_the_sum_is_part_of_the_activation(tmp_path: Path) -> None:
    source = _model("points", _POINTS + "h = Conv(j, w, b) y = Relu(h)", "float16")
    found, _ = _rewritten(source, tmp_path)
    (region,) = [r for r in fuse(found).regions if any(n.op_type == "Add" for n in r.nodes)]
    assert [n.op_type for n in region.nodes if n.op_type != "Transpose"] == ["Add", "Relu"]


def _random(rng: np.random.Generator) -> tuple[ir.Model, bool]:
    """A product of parts in random order, some of which repeat random dims; whether any does."""
    convolves, spatial = bool(rng.integers(2)), int(rng.integers(1, 4))
    axis = 1 if convolves else spatial + 1
    dims = [str(rng.choice([name, str(size)])) for name, size in list(SIZES.items())[: spatial + 1]]
    declared, body, names, depth = [], "", [], 0
    for k in range(int(rng.integers(2, 6))):
        width = int(rng.integers(1, 9))
        whole = [*dims[:axis], str(width), *dims[axis:]]
        own = [d if i == axis or k == 0 or rng.random() < 0.5 else "1" for i, d in enumerate(whole)]
        declared.append(f"float[{', '.join(own)}] x{k}")
        if own != whole:
            body += f"a{k} = Shape<start = 0, end = {axis}>(x0) b{k} = Shape<start = {axis}, end = {axis + 1}>(x{k}) "
            body += f"c{k} = Shape<start = {axis + 1}>(x0) s{k} = Concat<axis = 0>(a{k}, b{k}, c{k}) "
            body += f"r{k} = Expand(x{k}, s{k}) "
        names.append(f"x{k}" if own == whole else f"r{k}")
        depth += width
    outputs = int(rng.integers(1, 3))
    arrays = {"w": (outputs, depth, *[1] * spatial) if convolves else (depth, outputs), "b": (outputs,)}
    declared += [f"float[{', '.join(map(str, dims))}] {name}" for name, dims in arrays.items()]
    body += f"j = Concat<axis = {axis}>({', '.join(rng.permutation(names))}) "
    body += "y = Conv(j, w, b)" if convolves else "h = MatMul(j, w) y = Add(h, b)"
    made = graph(", ".join(declared), "float[] y", body)
    hold(made, {name: rng.standard_normal(dims) for name, dims in arrays.items()}, np.float32)
    return made, any(name.startswith("r") for name in names)


def test_random_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_columns, "_pays", lambda *_: True)
    applied = 0
    for seed in range(36):
        source, repeats = _random(np.random.default_rng(seed))
        found, count = _rewritten(source, tmp_path)
        assert count == repeats
        applied += count
        _check(source, found)
    assert applied > 20
