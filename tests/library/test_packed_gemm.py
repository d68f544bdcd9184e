"""The library's CPU kernel for products with weights of 4 and 8 bits against float64, and damaged files."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from onnxopt.program.gemm import Gemm, PackedIntegers
from tests.support import custom_ops_artifact as artifact
from tests.support.packed_weights import Weight

pytestmark = pytest.mark.usefixtures("library")
H, U = "float16", "uint8"
TOLERANCE = 6e-4  # of the largest result: half an ulp of float16


def gemm(weight: Weight, more: int = 0, parts: int = 1, **fields: Any) -> Gemm:
    """a, b, scales, zero points if there are any, then float16 inputs."""
    zeros = {"middle": (), "codes": (U,), "floats": (H,)}[weight.zeros]
    codes = PackedIntegers(weight.bits, weight.group, 2, 3 if zeros else None)
    made = Gemm((H, U, H, *zeros, *[H] * more), (H,) * parts, transpose_b=True, packed=codes, **fields)
    made.verify()
    return made


def row(meaning: Gemm, **fields: Any) -> dict[str, Any]:
    return {"name": artifact.NAME, "kind": "gemm", **meaning.to_json(), "cpu": True, "variants": [], **fields}


def run(folder: pathlib.Path, meaning: Gemm, arrays: list[np.ndarray]) -> list[np.ndarray]:
    library = artifact.write(folder, [row(meaning)])
    body = artifact.wrong_body(*meaning.outputs)
    inputs = [(d, list(a.shape)) for d, a in zip(meaning.inputs, arrays, strict=True)]
    model = artifact.model(body, inputs, [(d, None) for d in meaning.outputs])
    return artifact.run(artifact.session(model, library), arrays)


@pytest.mark.parametrize("shape", [(1, 64), (2, 3, 64), (37, 64)])
@pytest.mark.parametrize("zeros", ["middle", "codes", "floats"])
@pytest.mark.parametrize(("bits", "group"), [(2, 32), (4, 32), (4, 16), (8, 64), (8, 128)])
def test_products(tmp_path: pathlib.Path, bits: int, group: int, zeros: str, shape: tuple[int, ...]) -> None:
    weight = Weight(70, shape[-1], bits, group, zeros)
    inputs, matrix = weight.draw(5)
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float16)
    (found,) = run(tmp_path, gemm(weight), [x, *inputs])
    expected = x.astype(np.float64) @ matrix.T
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


def test_bias_residual_and_an_odd_number_of_groups(tmp_path: pathlib.Path) -> None:
    weight = Weight(9, 80, zeros="codes")  # the third group is half empty
    inputs, matrix = weight.draw(6)
    rng = np.random.default_rng(3)
    x, bias, residual = (rng.standard_normal(s).astype(np.float16) for s in ((4, 80), (9,), (4, 9)))
    meaning = gemm(weight, more=2, bias=4, residual=5, alpha=0.5, activation="relu")
    (found,) = run(tmp_path, meaning, [x, *inputs, bias, residual])
    expected = np.maximum(0.5 * x.astype(np.float64) @ matrix.T + bias + residual, 0)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


def test_parts(tmp_path: pathlib.Path) -> None:
    weight = Weight(12, 64, zeros="codes")
    inputs, matrix = weight.draw(7)
    x = np.random.default_rng(4).standard_normal((3, 64)).astype(np.float16)
    found = run(tmp_path, gemm(weight, parts=3), [x, *inputs])
    expected = x.astype(np.float64) @ matrix.T
    got = np.concatenate(found, axis=-1).astype(np.float64)
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_gates(tmp_path: pathlib.Path, gate: str) -> None:
    weight = Weight(14, 64, zeros="codes")
    inputs, matrix = weight.draw(7)
    x = np.random.default_rng(4).standard_normal((2, 3, 64)).astype(np.float16)
    (found,) = run(tmp_path, gemm(weight, gate=gate), [x, *inputs])
    g, u = np.split(x.astype(np.float64) @ matrix.T, 2, axis=-1)
    tanh = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    expected = (g / (1 + np.exp(-g)) if gate == "silu" else tanh) * u
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=3 * TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_shapes_that_do_not_fit(tmp_path: pathlib.Path, which: int) -> None:
    weight = Weight(8, 64, zeros="codes")
    inputs, _ = weight.draw(8)
    arrays = [np.zeros((2, 64), np.float16), *inputs]
    arrays[which] = np.concatenate([arrays[which]] * 2, axis=-1)
    with pytest.raises(Exception, match="do not fit together"):
        run(tmp_path, gemm(weight), arrays)


CODES = {"bits": 4, "group": 32, "scales": 2}
DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "bits between": ({"codes": {**CODES, "bits": 6}}, "bits is neither 2, 4 nor 8"),
    "group too small for 2 bits": ({"codes": {**CODES, "bits": 2, "group": 16}}, "group"),
    "bits beyond": ({"codes": {**CODES, "bits": 16}}, "bits"),
    "group no power": ({"codes": {**CODES, "group": 48}}, "group is no power of two"),
    "group too small": ({"codes": {**CODES, "group": 8}}, "group"),
    "no scales": ({"codes": {"bits": 4, "group": 32}}, 'has no field "scales"'),
    "scales out of range": ({"codes": {**CODES, "scales": 3}}, "scales"),
    "scales of codes": ({"inputs": [H, U, U]}, "have scales of another dtype"),
    "codes of floats": ({"inputs": [H, H, H]}, "have codes that are not uint8"),
    "zeros of another dtype": ({"inputs": [H, U, H, "float32"], "codes": {**CODES, "zeros": 3}}, "have zeros of"),
    "float32": ({"inputs": ["float32", U, "float32"], "outputs": ["float32"]}, "do not go with codes"),
    "not transposed": ({"transpose_b": False}, "does not go with a product of these transposes"),
    "unknown gate": ({"gate": "relu"}, 'gate is "relu", not silu or gelu_tanh'),
    "gate behind an activation": ({"gate": "silu", "activation": "relu"}, "gate does not go with this product"),
    "code without columns": ({"variants": [{}]}, 'has no field "symbol"'),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage(tmp_path: pathlib.Path, name: str) -> None:
    fields, message = DAMAGE[name]
    damaged = row(gemm(Weight(8, 64)), **fields)
    library = artifact.write(tmp_path, [damaged])
    model = artifact.model(artifact.wrong_body(H), [(H, None), (U, None), (H, None)], [(H, None)])
    with pytest.raises(Exception, match=r"kernels\.json") as caught:
        artifact.session(model, library)
    assert message in str(caught.value)


def test_a_meaning_that_breaks_a_rule() -> None:
    good = gemm(Weight(8, 64))
    for fields, problem in [
        ({"packed": PackedIntegers(3, 32, 2)}, "3 bits in groups of 32"),
        ({"packed": PackedIntegers(2, 16, 2)}, "2 bits in groups of 16"),
        ({"packed": PackedIntegers(4, 24, 2)}, "4 bits in groups of 24"),
        ({"inputs": (H, U, "float32")}, "scales of float32"),
        ({"inputs": (H, H, H)}, "no transposed matrix of uint8"),
        ({"transpose_b": False}, "no transposed matrix of uint8"),
        ({"packed": None}, "are not all of 3 inputs"),
        ({"gate": "relu"}, "gate: relu"),
        (
            {"gate": "silu", "activation": "relu"},
            "gate: silu of a product without packed weights",
        ),
    ]:
        with pytest.raises(ValueError, match=problem):
            Gemm(**{**{f: getattr(good, f) for f in good.__dataclass_fields__}, **fields}).verify()
