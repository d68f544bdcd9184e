"""Products with weights of 2, 4 and 8 bits: which calls are refused."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from cases.packed_weights import Weight
from onnxopt.kinds.gemm import packed_entry_points
from onnxopt.program.gemm import Gemm, PackedIntegers
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.fakes import idle_gpu

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
    points = [v.to_json() for v in packed_entry_points.entry_points(artifact.NAME, meaning, ())]
    model = artifact.model(artifact.wrong_body(H), [(d, None) for d in meaning.inputs], [(H, None)])
    feeds = [{f"x{k}": array for k, array in enumerate(arrays)} for arrays in every]
    described = idle_gpu.document_of(row(meaning, variants=points))
    shapes, *said = idle_gpu.calls(tmp_path / "run", model, described, feeds)
    assert shapes == {"y0": (2, 8)} and len(said) == 4
    assert all("do not fit together" in one for one in said)


def test_entry_points_are_read(tmp_path: pathlib.Path) -> None:
    described = idle_gpu.document_of(row(gemm(Weight(8, 64)), variants=[{}]))
    idle_gpu.assert_refused(tmp_path, described, 'has no field "symbol"')
