"""Quantized models without steps of codes, and held against that."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.runtime import sessions
from onnxopt.verification.rounding import unrounded
from onnxopt.verification.rounding.exactness import QuantizedExactness
from tests.support import real_models
from tests.support.command import run
from tests.support.fusing import cpu_kernels_forced
from tests.support.precision import quantized_models

_SETUP = sessions.SessionSetup(dict([sessions.WITHOUT_INTEGER_KERNELS]))
DRAW = np.random.default_rng(0).standard_normal


def _save(path: Path, text: str, opset: int = 21, **constants: np.ndarray) -> Path:
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


def _run(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return sessions.run(sessions.open_session(path, setup=_SETUP), feeds)


WEIGHT = DRAW((6, 5)).astype(np.float32)
CODES = DRAW((6, 5)).__mul__(40).clip(-127, 127).astype(np.int8)


def _static(folder: Path) -> tuple[Path, np.ndarray]:
    """Per tensor with a zero point, moved, and per axis; a weight of codes. What it gives without steps, for x."""
    scales = np.float32([0.5, 0.25, 0.125, 0.5, 0.25])
    path = _save(
        folder / "m.onnx",
        """g (float[n, 6] x) => (float[n, 5] y) {
          a = QuantizeLinear(x, s, z)
          t = Transpose<perm = [1, 0]>(a)
          u = Transpose<perm = [1, 0]>(t)
          b = DequantizeLinear(u, s, z)
          w = DequantizeLinear<axis = 1>(codes, scales)
          c = MatMul(b, w)
          d = QuantizeLinear<axis = 1>(c, scales, zeros)
          y = DequantizeLinear<axis = 1>(d, scales, zeros)
        }""",
        s=np.float32(0.2), z=np.uint8(100), codes=CODES, scales=scales, zeros=np.zeros(5, np.int8),
    )  # fmt: skip
    return path, CODES.astype(np.float32) * scales


def _dynamic(folder: Path) -> tuple[Path, np.ndarray]:
    path = _save(
        folder / "m.onnx",
        """g (float[n, 6] x) => (float[n, 5] y) {
          a, s, z = DynamicQuantizeLinear(x)
          c = MatMulInteger(a, codes, z, zero)
          f = Cast<to = 1>(c)
          m = Mul(s, scale)
          y = Mul(f, m)
        }""",
        codes=CODES, zero=np.int8(3), scale=np.float32(0.1),
    )  # fmt: skip
    return path, (CODES.astype(np.float32) - 3) * np.float32(0.1)


@pytest.mark.parametrize("make", [_static, _dynamic])
def test_without_steps_it_is_the_product_of_floats(make: Any, tmp_path: Path) -> None:
    """No rounding, and nothing is cut off: the inputs reach beyond the codes."""
    (tmp_path / "exact").mkdir()
    path, weight = make(tmp_path)
    exact = unrounded.unround(path, tmp_path / "exact")
    x = (50 * DRAW((4, 6))).astype(np.float32)
    expected = x.astype(np.float64) @ weight
    np.testing.assert_allclose(_run(exact, {"x": x})["y"], expected, rtol=1e-4, atol=1e-2)
    assert np.abs(_run(path, {"x": x})["y"] - expected).max() > 0.5


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = QuantizeLinear(x, s, z)\n y = Cast<to = 6>(a)", "works on codes as integers"),
        ("y = QuantizeLinear(x, s, z)", "are an output"),
        ("r = Round(x)\n y = Cast<to = 6>(r)", "rounds in no QuantizeLinear"),
    ],
)
def test_codes_that_are_integers_of_their_own_are_refused(tmp_path: Path, body: str, reason: str) -> None:
    dtype = "int32" if "Cast" in body else "uint8"
    text = f"g (float[n, 6] x) => ({dtype}[n, 6] y) {{ {body} }}"
    path = _save(tmp_path / "m.onnx", text, s=np.float32(0.2), z=np.uint8(100))
    (tmp_path / "exact").mkdir()
    with pytest.raises(unrounded.NotUnrounded, match=reason):
        unrounded.unround(path, tmp_path / "exact")


def test_float8_is_unrounded(tmp_path: Path) -> None:
    graph = onnx.parser.parse_graph("""
        g (float[n, 6] x) => (float[n, 6] y) { a = QuantizeLinear(x, s, z)  y = DequantizeLinear(a, s, z) }
    """)
    graph.initializer.append(numpy_helper.from_array(np.float32(0.2), "s"))
    graph.initializer.append(helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0]))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), tmp_path / "m.onnx")
    (tmp_path / "exact").mkdir()
    exact = unrounded.unround(tmp_path / "m.onnx", tmp_path / "exact")
    x = DRAW((4, 6)).astype(np.float32)
    np.testing.assert_allclose(_run(exact, {"x": x})["y"], x, rtol=1e-6)


def test_what_quantizing_costs_is_the_limit() -> None:
    """The worst element at most twice as far as the original's, all together 1.15 times, few elements up to twice."""
    own = QuantizedExactness(1.0, 1.0, 0.5, 0.5, 10**8)
    assert own.ok and dataclasses.replace(own, found=2.0, found_rms=0.67).ok
    assert not dataclasses.replace(own, found=2.2).ok
    assert not dataclasses.replace(own, found_rms=0.68).ok
    assert dataclasses.replace(own, found_rms=0.76, elements=900).ok
    assert not dataclasses.replace(own, found_rms=0.78, elements=900).ok
    assert dataclasses.replace(own, found_rms=1.1, elements=1).ok
    assert not dataclasses.replace(own, found_rms=1.11, elements=1).ok


@pytest.mark.models
@pytest.mark.usefixtures("library")
def test_other_steps_of_codes_are_accepted_and_a_wrong_kernel_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of ours take other steps in a transformer of int8 and are as far from the model without steps."""
    model = quantized_models.quantized(real_models.path("vit_tiny"), "qdq_u8i8", tmp_path)
    with cpu_kernels_forced():
        onnxopt.optimize(model, tmp_path / "right", archs=())
        found = manifests.load(tmp_path / "right")
        exact = [c.exactness for c in found.verify.checks if c.exactness is not None]
        assert found.verify.status == "passed" and found.left_out == () and exact
        assert any(c.difference is not None and not c.difference.ok for c in found.verify.checks)
        for row in exact:
            assert isinstance(row, QuantizedExactness) and row.found_rms <= 1.02 * row.original_rms
        assert "rms from the original without steps of codes" in run("verify", model, tmp_path / "right").stdout
        true_json = kernels_json.to_json

        def sabotaged(*arguments: Any) -> str:
            return sealed_json.seal(json.loads(true_json(*arguments).replace('"div"', '"mul"')))

        monkeypatch.setattr(kernels_json, "to_json", sabotaged)
        wrong = onnxopt.optimize(model, tmp_path / "wrong", archs=()).manifest
    assert wrong.left_out and all("without steps of codes" in row.reason for row in wrong.left_out)
