"""Zeros after joined columns of a product: where they come to, where not, and that they add nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse
from onnxopt.graph.rewrite import rewrite
from tests.support.graphs import graph, hold, run

NUMPY = {"float": np.float32, "float16": np.float16}
JOINED = "c = Concat<axis = -1>(x, z) "


def model(body: str, dtype: str = "float16", width: int = 6, outputs: str = "{} y") -> ir.Model:
    """A graph over x [N, 5] and z [N, width], with matrices w [5 + width, 3] and v, w transposed, and a bias b."""
    depth, rng = 5 + width, np.random.default_rng(3)
    arrays = {"w": rng.standard_normal((depth, 3)), "v": rng.standard_normal((3, depth)), "b": rng.standard_normal(3)}
    inputs = [f"{dtype}[N, 5] x", f"{dtype}[N, {width}] z"]
    inputs += [f"{dtype}[{','.join(map(str, a.shape))}] {k}" for k, a in arrays.items()]
    source = graph(", ".join(inputs), outputs.replace("{}", f"{dtype}[]"), body)
    hold(source, arrays, NUMPY[dtype])
    return source


def aligned(source: ir.Model, folder: Path, gpu: bool = True) -> tuple[ir.Model, int]:
    found = source.clone()
    return found, rewrite(found, folder, gpu=gpu).applied["products"]


@pytest.mark.parametrize(("dtype", "width", "depth"), [("float16", 6, 16), ("float", 6, 12), ("float16", 4, 16)])
@pytest.mark.parametrize(
    "product", ["y = MatMul(c, w)", "m = MatMul(c, w) y = Add(m, b)", "y = Gemm(c, w, b)", "y = Gemm<transB = 1>(c, v)"]
)
def test_the_depth_is_a_multiple_of_16_bytes(product: str, dtype: str, width: int, depth: int, tmp_path: Path) -> None:
    source = model(JOINED + product, dtype, width)
    found, count = aligned(source, tmp_path)
    assert count == 1 and [node.op_type for node in found.graph][:2] == ["Concat", "Pad"]
    (weight,) = [v for v in found.graph.initializers.values() if len(v.shape or ()) == 2]
    assert sorted(weight.shape) == [3, depth]  # type: ignore[arg-type,type-var]
    for rows in (1, 4):
        feeds = {
            name: np.random.default_rng(rows).standard_normal((rows, size)).astype(NUMPY[dtype])
            for name, size in (("x", 5), ("z", width))
        }
        feeds["z"][0, :2] = np.inf, np.nan
        (expected,), (result,) = run(source, feeds), run(found, feeds)
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)
    (region,) = [r for r in fuse(found).regions if any(n.op_type == "Concat" for n in r.nodes)]
    assert [n.op_type for n in region.nodes] == ["Concat", "Pad"]  # in one kernel


@pytest.mark.parametrize(
    ("body", "width", "outputs"),
    [
        pytest.param(JOINED + "y = MatMul(c, w)", 3, "{} y", id="8 elements"),
        pytest.param(JOINED + "y = MatMul(c, w) u = Relu(c)", 6, "{} y, {} u", id="columns that are read elsewhere"),
        pytest.param(JOINED + "y = MatMul(c, w) u = Relu(w)", 6, "{} y, {} u", id="a weight that is read elsewhere"),
        pytest.param(JOINED + "r = Relu(w) y = MatMul(c, r)", 6, "{} y", id="a computed weight"),
        pytest.param(JOINED + "y = Gemm<transA = 1>(c, w)", 6, "{} y", id="columns as rows"),
        pytest.param("c = Concat<axis = 0>(x, x) y = MatMul(c, w)", 0, "{} y", id="joined rows"),
        pytest.param(
            "p, q, r, s, t, u = Split<axis = 1, num_outputs = 6>(z) c = Concat<axis = 1>(x, p, q, r, s, t, u) "
            "y = MatMul(c, w)",
            6,
            "{} y",
            id="more parts than a kernel joins",
        ),
    ],
)
def test_other_products_stay(body: str, width: int, outputs: str, tmp_path: Path) -> None:
    assert aligned(model(body, width=width, outputs=outputs), tmp_path)[1] == 0


def test_no_zeros_without_kernels_for_gpus(tmp_path: Path) -> None:
    assert aligned(model(JOINED + "y = MatMul(c, w)"), tmp_path, gpu=False)[1] == 0
