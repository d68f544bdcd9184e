"""Constants behind a convolution: which are folded into its weight and bias, what is refused, and that results stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.convolutions import constants
from tests.support.graphs import graph, hold, node, run, value

C = 4


def model(
    body: str,
    dtype: str = "float",
    outputs: str = "{} y",
    constants: dict[str, np.ndarray] | None = None,
    groups: int = 1,
) -> ir.Model:
    """A graph around the weights w [4, 4 / groups, 3, 3] of a Conv and t [4, 3, 2, 2] of a ConvTranspose."""
    numpy_dtype = {"float": np.float32, "float16": np.float16}[dtype]
    rng = np.random.default_rng(4)
    arrays: dict[str, np.ndarray] = {
        "w": rng.standard_normal((C, C // groups, 3, 3)), "t": rng.standard_normal((C, 3, 2, 2)),
        "b": rng.standard_normal(C), "k": rng.standard_normal((1, C, 1, 1)), "m": rng.standard_normal((C, 1, 1)),
        "s": np.array(0.75), "g": rng.standard_normal(C), "mean": rng.standard_normal(C),
        "variance": rng.uniform(0.5, 2, C), "h": rng.standard_normal((5, 5)), "b3": rng.standard_normal(3),
        "v3": rng.uniform(0.5, 2, 3),
    }  # fmt: skip
    arrays |= constants or {}
    inputs = [f"{dtype}[2, {C}, 5, 5] x", *(f"{dtype}[{','.join(map(str, a.shape))}] {k}" for k, a in arrays.items())]
    source = graph(", ".join(inputs), outputs.replace("{}", f"{dtype}[a, b, c, d]"), body)
    hold(source, arrays, numpy_dtype)
    return source


def fold(source: ir.Model, folder: Path) -> tuple[ir.Model, int]:
    copy = source.clone()
    return copy, rewrite(copy, folder, leave_out={"channels_last"}).applied["fold"]


CONV = "a = Conv<pads=[1,1,1,1]>(x, w) "
BIASED = "a = Conv<pads=[1,1,1,1]>(x, w, b) "
TURNED = "a = ConvTranspose<strides=[2,2]>(x, t) "
NORM = "y = BatchNormalization<epsilon=0.01>(a, {})"


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(
    ("body", "count"),
    [
        (CONV + "y = Add(a, k)", 1),
        (CONV + "y = Add(m, a)", 1),
        (CONV + "y = Sub(a, s)", 1),
        (BIASED + "y = Add(a, k)", 1),
        (BIASED + "y = Mul(a, m)", 1),
        (CONV + "y = Div(a, s)", 1),
        (BIASED + NORM.format("g, b, mean, variance"), 1),
        (CONV + "c = Mul(k, a) y = Add(c, m)", 2),
        (TURNED + NORM.format("b3, b3, b3, v3"), 1),
    ],
)
def test_what_is_folded(body: str, count: int, dtype: str, tmp_path: Path) -> None:
    source = model(body, dtype)
    found, applied = fold(source, tmp_path)
    assert applied == count
    assert [n.op_type for n in found.graph] == [source.graph[0].op_type]
    assert len(found.graph[0].inputs) == 2 + ("Div" not in body)
    assert found.graph[0].attributes.keys() == source.graph[0].attributes.keys()
    x = np.random.default_rng(1).standard_normal((2, C, 5, 5)).astype(np.float32 if dtype == "float" else np.float16)
    (one,), (other,) = run(found, {"x": x}), run(source, {"x": x})
    tolerance = 1e-5 if dtype == "float" else 2e-2
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_depthwise_weights_are_folded(tmp_path: Path) -> None:
    source = model("a = Conv<group=4>(x, w) " + NORM.format("g, b, mean, variance"), groups=4)
    found, applied = fold(source, tmp_path)
    assert applied == 1
    x = np.random.default_rng(1).standard_normal((2, C, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(run(found, {"x": x})[0], run(source, {"x": x})[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        ("2, 4, 5", "a = Conv(x, w) y = BatchNormalization(a, g, g, g, v)"),
        ("2, 4, 5", "a = Conv(x, w) y = Add(a, column)"),
        ("2, 4, 3, 3, 3", "a = Conv(x, w) y = BatchNormalization(a, g, g, g, v)"),
        ("2, 4, 5", "a = ConvTranspose(x, w) y = BatchNormalization(a, g, g, g, v)"),
    ],
)
def test_one_and_three_dims(shape: str, body: str, tmp_path: Path) -> None:
    dims = [int(d) for d in shape.split(", ")]
    rng = np.random.default_rng(2)
    sizes = {"w": (4, 4, *(2,) * (len(dims) - 2)), "g": (4,), "v": (4,), "column": (4, 1)}
    arrays = {name: rng.uniform(0.5, 2, size) for name, size in sizes.items()}
    inputs = [f"float[{shape}] x", *(f"float[{','.join(map(str, d))}] {k}" for k, d in sizes.items())]
    source = graph(", ".join(inputs), f"float[{','.join('abcde'[: len(dims)])}] y", body)
    hold(source, arrays, np.float32)
    found, applied = fold(source, tmp_path)
    assert applied == 1 and len(found.graph) == 1
    x = rng.standard_normal(dims).astype(np.float32)
    np.testing.assert_allclose(run(found, {"x": x})[0], run(source, {"x": x})[0], rtol=1e-5, atol=1e-5)


def test_the_result_is_rounded_once(tmp_path: Path) -> None:
    source = model(BIASED + NORM.format("g, b, mean, variance"), "float16")
    found, _ = fold(source, tmp_path)
    w, b, g, mean, variance = (
        value(source, name).const_value.numpy().astype(np.float64) for name in ("w", "b", "g", "mean", "variance")
    )  # fmt: skip
    scale = g / np.sqrt(variance + np.float32(0.01))
    weight, bias = (v.const_value.numpy() for v in found.graph[0].inputs[1:])  # type: ignore[union-attr]
    assert (weight == (w * scale[:, None, None, None]).astype(np.float16)).all()
    assert (bias == ((b - mean) * scale + b).astype(np.float16)).all()


@pytest.mark.parametrize(
    ("body", "outputs", "changes"),
    [
        (CONV + "y = Add(a, k) z = Relu(a)", "{} y, {} z", {}),
        (CONV + "y = Add(a, k)", "{} y, {} a", {}),
        (CONV + "y = Add(a, h)", "{} y", {}),
        (CONV + "y = Div(k, a)", "{} y", {}),
        (CONV + "y = Sub(k, a)", "{} y", {}),
        (CONV + "y = Mul(a, k) z = Conv(x, w)", "{} y, {} z", {}),
        (CONV + "y = Mul(a, a)", "{} y", {}),
        (CONV + "y = Mul(a, k)", "{} y", {"k": np.full((1, C, 1, 1), 1e-5)}),
        (CONV + "y = Mul(a, k)", "{} y", {"k": np.full((1, C, 1, 1), 6e4)}),
        (CONV + "y = Div(a, s)", "{} y", {"s": np.array(0.0)}),
        (CONV + "y = Add(a, k)", "{} y", {"w": np.ones((1, C, 3, 3))}),
        (CONV + NORM.format("g, b, mean, variance"), "{} y", {"variance": np.full(C, -1.0)}),
    ],
)
def test_what_is_refused(body: str, outputs: str, changes: dict[str, np.ndarray], tmp_path: Path) -> None:
    source = model(body, "float16", outputs, changes)
    found, applied = fold(source, tmp_path)
    assert applied == 0
    assert [n.op_type for n in found.graph] == [n.op_type for n in source.graph]


def test_a_refusal_says_why() -> None:
    source = model(CONV + "y = Mul(a, k)", "float16", constants={"k": np.full((1, C, 1, 1), 1e-5)})
    rule = constants.Arithmetic("Mul", "Conv", True)
    values = {name: value(source, name) for name in ("x", "w")}
    result = rule.check(None, c=value(source, "k"), convolved=node(source, "a").outputs[0], **values)  # type: ignore[arg-type]
    assert "subnormal in float16" in result.reason
