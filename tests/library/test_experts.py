"""Mixtures of experts through the library on the CPU: meaning, shapes and activations against float64."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.runtime import sessions
from tests.support.custom_ops_artifact import copy_library
from tests.support.custom_ops_damage import set_field
from tests.support.custom_ops_fake_driver import fatbin
from tests.support.experts_models import Case, fused
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = pytest.mark.usefixtures("library")

CASE = Case(3, 4, 2, 16, 8)


def _session(
    case: Case, folder: Path, change: Callable[[dict[str, Any]], None] | None = None, image: bytes | None = None
) -> ort.InferenceSession:
    """A session that runs the one fused function with the CPU kernel. change: of kernels.json's document, in place."""
    found = fused(case)
    library = copy_library(folder)
    document = json.loads(kernels_json.to_json([dataclasses.replace(found.kernels[0], cpu=True)], image))
    if image is not None:
        (folder / "kernels.fatbin").write_bytes(image)
    if change is not None:
        change(document)
    (folder / "kernels.json").write_text(sealed_json.seal(document))
    onnx.save(with_wrong_bodies(found.optimized), folder / "model.onnx")
    return sessions.open_session(folder / "model.onnx", library=library)


@pytest.mark.parametrize(
    "case",
    [
        CASE, dataclasses.replace(CASE, dtype="float16", activation="gelu"),
        dataclasses.replace(CASE, dtype="float16", activation="clamped", biased=True, interleaved=True),
        Case(1, 7, 3, 24, 40, "bfloat16", wide=False, biased=True),
        Case(1, 5, 1, 8, 12, activation="squared", plain=True),
    ],
    ids=str,
)  # fmt: skip
def test_one_session_takes_any_number_of_tokens(case: Case, tmp_path: Path) -> None:
    session = _session(case, tmp_path / "lib")
    for tokens in (0, 1, 5, 40):
        of = dataclasses.replace(case, tokens=tokens)
        feeds = of.feeds()
        assert of.worst(sessions.run(session, feeds)["y"], of.expected(feeds)) <= 1


def test_onnx_runtime_knows_the_shape(tmp_path: Path) -> None:
    found = fused(dataclasses.replace(CASE, known=True))
    for value in found.optimized.graph.output:
        value.type.tensor_type.ClearField("shape")
    (output,) = _session(dataclasses.replace(CASE, known=True), tmp_path / "lib").get_outputs()
    assert output.shape == [3, 16]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("experts", 5, "the first weight of shape [4, 16, 16], expected [5, 16, 16]"),
        ("hidden", 12, "the first weight of shape [4, 16, 16], expected [4, 16, 24]"),
        ("chosen", 3, "ids of shape [3, 2], expected [3, 3]"),
        ("columns", 18, "columns is no multiple of an access"),
        ("experts", 1025, "experts is not an integer from 1"),
        ("inputs.1", "int32", "have ids that are not int64"),
        ("inputs.3", "float16", "are not all of the output's dtype"),
        ("inputs.2", "float16", "have factors of another dtype"),
        ("outputs", ["int32"], "are no floats of 16 or 32 bits"),
        ("program.outputs", ["float16"], "does not compute one result of its dtype"),
        ("interleaved", 1, "interleaved is not true or false"),
        ("first_bias", 5, "are not 6"),
        ("variants.0.columns", 16, "have sides of tiles that do not fit their launches"),
        ("variants.4.rows", 16, "have sides of tiles that do not fit their launches"),
        ("variants.0.threads", 100, "threads is no multiple of a warp"),
        ("variants.0.shared", 65537, "shared is not an integer from 0"),
        ("variants.12.least_rows", -1, "least_rows is not an integer from 0"),
    ],
)
def test_what_breaks_a_rule_is_refused(field: str, value: Any, said: str, tmp_path: Path) -> None:
    def run() -> None:
        change = set_field(f"kernels.0.{field}", value)
        sessions.run(_session(CASE, tmp_path / "lib", change, fatbin((90, False))), CASE.feeds())

    with pytest.raises(Exception, match=re.escape(said)):
        run()


def test_missing_entry_points_are_refused(tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["kernels"][0]["variants"].pop()

    with pytest.raises(Exception, match="are not the 15 launches"):
        _session(CASE, tmp_path / "lib", change, fatbin((90, False)))


def test_an_id_of_no_expert_counts_as_the_nearest(tmp_path: Path) -> None:
    """No weight is read that is not there."""
    found = fused(CASE)
    session = _session(CASE, tmp_path / "lib")
    assert found.plan.regions[0].inputs[1].name == "ids"
    feeds = CASE.feeds()
    feeds["scores"][:] = np.nan  # whatever TopK makes of it
    assert sessions.run(session, feeds)["y"].shape == (3, 16)
