"""Squeeze-excites through the library on the CPU: meaning, shapes and programs against float64."""

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
from tests.support.squeeze_excite_models import Case, Fused, fused, worst
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = pytest.mark.usefixtures("library")


def _session(
    found: Fused, folder: Path, change: Callable[[dict[str, Any]], None] | None = None, image: bytes | None = None
) -> ort.InferenceSession:
    """A session that runs the one fused function with the CPU kernel. change: of kernels.json's document, in place."""
    library = copy_library(folder)
    document = json.loads(kernels_json.to_json([dataclasses.replace(found.kernel, cpu=True)], image))
    if image is not None:
        (folder / "kernels.fatbin").write_bytes(image)
    if change is not None:
        change(document)
    (folder / "kernels.json").write_text(sealed_json.seal(document))
    optimized = with_wrong_bodies(found.optimized) if len(found.optimized.functions) == 1 else found.optimized
    onnx.save(optimized, folder / "model.onnx")
    return sessions.open_session(folder / "model.onnx", library=library)


CASES = (
    Case((2, 9, 7, 37), 7),
    Case((3, 8, 8, 16), 4, "float16", 5, 2, in_front=True, gate="hardsigmoid"),
    Case((1, 6, 7, 24), 6, "bfloat16", activation="relu", gate="spelled", known=False),
    Case((2, 5, 5, 12), 3, "float16", activation="hardswish", bias=False, known=False),
    Case((150, 2, 2, 9), 20, kernel=1),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_map_and_the_factors(case: Case, tmp_path: Path) -> None:
    feeds = case.feeds()
    assert worst(case, sessions.run(_session(fused(case), tmp_path / "lib"), feeds), case.expected(feeds)) <= 1


@pytest.mark.parametrize("form", ["conv", "gemm", "matmul"])
def test_without_a_convolution(form: str, tmp_path: Path) -> None:
    case = Case((3, 4, 5, 30), 8, depthwise=False, form=form, activation="relu", known=False)
    feeds = case.feeds()
    session = _session(fused(case), tmp_path / "lib")
    assert worst(case, sessions.run(session, feeds), case.expected(feeds)) <= 1


def test_one_session_takes_any_shape(tmp_path: Path) -> None:
    first = Case((1, 8, 8, 5), 3, stride=2, known=False)
    session = _session(fused(first), tmp_path / "lib")
    for x in ((1, 8, 8), (3, 1, 1), (2, 30, 5), (0, 8, 8), (1, 8, 300)):
        case = dataclasses.replace(first, x=(*x, 5))
        found = sessions.run(session, case.feeds())
        assert found["v"].shape == case.result_dims() and found["f"].shape == (x[0], 1, 1, 5)
        if x[0]:
            assert worst(case, found, case.expected(case.feeds())) <= 1


def test_onnx_runtime_knows_the_shapes(tmp_path: Path) -> None:
    found = fused(Case((2, 9, 10, 16), 4, "float16", 3, 2))
    for value in found.optimized.graph.output:
        value.type.tensor_type.ClearField("shape")
    shapes = {o.name: o.shape for o in _session(found, tmp_path / "lib").get_outputs()}
    assert shapes == {"v": [2, 5, 5, 16], "f": [2, 1, 1, 16]}


def test_a_map_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    session = _session(fused(Case((1, 8, 8, 4), 2, known=False)), tmp_path / "lib")
    with pytest.raises(Exception, match=r"x \[0, 2147483648, 8, 4\] has a dim of 2\^31 or more"):
        sessions.run(session, {"t": np.zeros((0, 2**31, 8, 4), np.float32)})


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("hidden", 3, "a weight of shape [4, 16] does not fit"),
        ("second.bias", 4, "a bias of shape [4] does not fit"),
        ("channels", 2049, "channels is not an integer from 1"),
        ("depthwise.channels", 8, "has another dtype or other channels than the products"),
        ("depthwise.inputs", ["float16"], "are not the kernel's first inputs"),
        ("depthwise.outputs", ["float32", "float32"], "are not the kernel's first output"),
        ("mean", 0, "has both or none of mean and depthwise"),
        ("outputs", ["float32"], "are not the factors, behind the map"),
        ("first.program.outputs", ["float16"], "does not compute one result of its dtype from one float32"),
        ("variants.0.unroll", 5, "unroll is above 4"),
        ("variants.1.threads", 500, "threads is no multiple of a warp"),
    ],
)
def test_what_breaks_a_rule_is_refused(field: str, value: Any, said: str, tmp_path: Path) -> None:
    case = Case((2, 6, 6, 16), 4)

    def run() -> None:
        sessions.run(_session(fused(case), tmp_path / "lib", set_field(f"kernels.0.{field}", value)), case.feeds())

    with pytest.raises(Exception, match=re.escape(said)):
        run()


def _without(kept: slice) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["kernels"][0]["variants"] = document["kernels"][0]["variants"][kept]

    return change


@pytest.mark.parametrize("kept", [slice(0, 3), slice(1, None), slice(3, None), slice(None, None, -1)])
def test_entry_points_in_another_order_are_refused(kept: slice, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="are not the products, and behind them those of the map"):
        _session(fused(Case((2, 6, 6, 16), 4)), tmp_path / "lib", _without(kept), fatbin((90, False)))
