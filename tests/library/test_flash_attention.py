"""Attention of many queries through the library on the CPU: meaning and shapes against float64, and bad files."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.runtime import sessions
from tests.support.custom_ops_artifact import copy_library
from tests.support.custom_ops_damage import set_field
from tests.support.depthwise_models import Fused
from tests.support.extended_attention import random_extended
from tests.support.flash_attention_models import Case, fused, random_case
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = pytest.mark.usefixtures("library")
CASE = Case(2, 20, 20, 3, 16, layout="split", bias=(False, True))


def session_of(found: Fused, folder: Path, change=None) -> ort.InferenceSession:
    """A session that runs the fused function with the CPU kernel. change: of kernels.json's document, in place."""
    library = copy_library(folder)
    kernels = [dataclasses.replace(k, cpu=True) for k in found.kernels]
    document = json.loads(kernels_json.to_json(kernels, None))
    if change is not None:
        change(document)
    (folder / "kernels.json").write_text(sealed_json.seal(document))
    onnx.save(with_wrong_bodies(found.optimized), folder / "model.onnx")
    return sessions.open_session(folder / "model.onnx", library=library)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_attentions(dtype: str, tmp_path: Path) -> None:
    for seed in range(20):
        case = random_case(seed, dtype)
        found = fused(case)
        (region,) = found.plan.regions
        assert region.kind.name == "flash_attention", case
        feeds = case.feeds()
        y = sessions.run(session_of(found, tmp_path / str(seed)), feeds)["y"]
        assert case.worst(y, case.expected(feeds)) <= 1, case


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 40), marks=pytest.mark.exhaustive)], ids=str)
def test_windows_caps_sinks_and_groups(seeds: range, dtype: str, tmp_path: Path) -> None:
    for seed in seeds:
        case = random_extended(seed, dtype)
        found = fused(case)
        (region,) = found.plan.regions
        assert region.kind.name == "flash_attention", case
        feeds = case.feeds()
        y = sessions.run(session_of(found, tmp_path / str(seed)), feeds)["y"]
        assert case.worst(y, case.expected(feeds)) <= 1, case


def test_a_bias_that_is_the_same_again_is_read_where_it_lies(tmp_path: Path) -> None:
    case = Case(6, 9, 9, 2, 16, layout="split", bias=(True, True), period=3)
    found = fused(case)
    assert [v.name for v in found.plan.regions[0].inputs] == ["x", "bias"]
    feeds = case.feeds()
    assert case.worst(sessions.run(session_of(found, tmp_path), feeds)["y"], case.expected(feeds)) <= 1


def test_one_session_takes_any_batch_and_number_of_queries(tmp_path: Path) -> None:
    first = Case(2, 20, 50, 3, 16, bias=(True, True), known=False)
    session = session_of(fused(first), tmp_path)
    for batch, queries in ((1, 1), (3, 70), (2, 50)):
        case = dataclasses.replace(first, batch=batch, queries=queries)
        feeds = case.feeds()
        assert case.worst(sessions.run(session, feeds)["y"], case.expected(feeds)) <= 1
    empty = dataclasses.replace(first, batch=0)
    assert sessions.run(session, empty.feeds())["y"].shape == (0, 20, 48)


def test_a_causal_query_that_sees_no_key_is_not_a_number(tmp_path: Path) -> None:
    case = Case(1, 9, 6, 1, 8, causal=True, known=False)
    feeds = case.feeds()
    y = sessions.run(session_of(fused(case), tmp_path), feeds)["y"]
    assert np.isnan(y[0, :3]).all() and not np.isnan(y[0, 3:]).any()


def test_shapes_that_do_not_fit_together(tmp_path: Path) -> None:
    case = Case(2, 20, 50, 3, 16, known=False)
    feeds = case.feeds() | {"k": np.zeros((3, 50, 48), np.float16)}
    with pytest.raises(Exception, match=r"attention of 3 heads of 16 elements: k \[3, 50, 48\] does not fit"):
        sessions.run(session_of(fused(case), tmp_path), feeds)


KERNEL, VARIANT = "kernels.0", "kernels.0.variants.0"
DAMAGE = {
    "no inputs": (f"{KERNEL}.inputs", [], "are not 1 to 5"),
    "two outputs": (f"{KERNEL}.outputs", ["float16"] * 2, "are not one"),
    "float32": (f"{KERNEL}.inputs.0", "float32", "are not of the inputs' dtype, and there are no codes"),
    "groups of no whole heads": (f"{KERNEL}.groups", 2, "is no multiple of groups"),
    "a wide head": (f"{KERNEL}.width", 257, "width is not an integer from 1 to 256"),
    "a head behind the row": (f"{KERNEL}.q.first", 120, "does not hold all heads"),
    "heads at one place": (f"{KERNEL}.k.step", 0, "step is 0"),
    "a far input": (f"{KERNEL}.v.input", 2, "input is not an integer from 0 to 1"),
    "keys by head, from somewhere on": (f"{KERNEL}.k.row", 0, "is 0, which goes with no parts of a token"),
    "queries by head": (f"{KERNEL}.q", {"input": 0, "row": 0, "first": 0, "step": 0}, "row is 0"),
    "no scale": (f"{KERNEL}.scale", 0.0, "is not a float32 above 0"),
    "a far bias": (f"{KERNEL}.bias", 2, "bias is not an integer from 0 to 1"),
    "threads of no whole warp": (f"{VARIANT}.threads", 100, "is no multiple of a warp"),
    "keys of no whole product": (f"{VARIANT}.keys", 40, "is no multiple of 16"),
    "an access of 12 bytes": (f"{VARIANT}.access", 12, "is no power of 2"),
    "too little shared memory": (f"{VARIANT}.shared", 1000, "is not what the tile takes"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, tmp_path: Path) -> None:
    field, value, message = DAMAGE[name]
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        session_of(fused(CASE), tmp_path, set_field(field, value))
    assert "kernels.json" in str(caught.value)
