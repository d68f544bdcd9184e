"""Products with weights of 2, 4 and 8 bits: which calls are refused, damaged files and meanings."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest

from onnxopt.kinds.gemm import packed_entry_points
from onnxopt.program.gemm import Gemm, PackedIntegers
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.fakes import idle_gpu
from tests.support.kinds.packed_weights import Weight

pytestmark = pytest.mark.usefixtures("library")
H, U = "float16", "uint8"


def gemm(weight: Weight, more: int = 0, parts: int = 1, **fields: Any) -> Gemm:
    """a, b, scales, zero points if there are any, then float16 inputs."""
    zeros = {"middle": (), "codes": (U,), "floats": (H,)}[weight.zeros]
    codes = PackedIntegers(weight.bits, weight.group, 2, 3 if zeros else None)
    made = Gemm((H, U, H, *zeros, *[H] * more), (H,) * parts, transpose_b=True, packed=codes, **fields)
    made.verify()
    return made


def row(meaning: Gemm, **fields: Any) -> dict[str, Any]:
    return {"name": artifact.NAME, "kind": "gemm", **meaning.to_json(), "cpu": False, "variants": [], **fields}


def test_shapes_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    weight = Weight(8, 64, zeros="codes")
    inputs, _ = weight.draw(8)
    given = [np.zeros((2, 64), np.float16), *inputs]
    every = [given]
    every += [[*given[:k], np.concatenate([array] * 2, axis=-1), *given[k + 1 :]] for k, array in enumerate(given)]
    meaning = gemm(weight)
    points = [dataclasses.asdict(v) for v in packed_entry_points.entry_points(artifact.NAME, meaning, ())]
    model = artifact.model(artifact.wrong_body(H), [(d, None) for d in meaning.inputs], [(H, None)])
    feeds = [{f"x{k}": array for k, array in enumerate(arrays)} for arrays in every]
    described = idle_gpu.document_of(row(meaning, variants=points))
    shapes, *said = idle_gpu.calls(tmp_path / "run", model, described, feeds)
    assert shapes == {"y0": (2, 8)} and len(said) == 4
    assert all("do not fit together" in one for one in said)


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
    idle_gpu.assert_refused(tmp_path, idle_gpu.document_of(row(gemm(Weight(8, 64)), **fields)), message)


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
