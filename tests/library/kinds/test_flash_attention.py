"""Calls of attention of many queries: which shapes come out, which are refused; damaged files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.flash_attention import Case, fused
from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")
CASE = Case(2, 20, 20, 3, 16, layout="split", bias=(False, True))


def test_a_model_of_any_batch_and_number_of_queries(tmp_path: Path) -> None:
    first = Case(2, 20, 50, 3, 16, bias=(True, True), known=False)
    sizes = ((1, 1), (3, 70), (2, 50), (0, 20))
    feeds = [dataclasses.replace(first, batch=batch, queries=queries).feeds() for batch, queries in sizes]
    feeds.append(feeds[0] | {"k": np.zeros((3, 50, 48), np.float16)})
    found = fused(first)
    *shapes, said = idle_gpu.calls(tmp_path / "run", found.optimized, idle_gpu.document(found.kernels), feeds)
    assert shapes == [{"y": (batch, queries, 48)} for batch, queries in sizes]
    assert "attention of 3 heads of 16 elements: k [3, 50, 48] does not fit" in said


VARIANT = "kernels.0.variants.0"
DAMAGE = {
    "threads of no whole warp": (f"{VARIANT}.threads", 100, "is no multiple of a warp"),
    "keys of no whole product": (f"{VARIANT}.keys", 40, "is no multiple of 16"),
    "an access of 12 bytes": (f"{VARIANT}.access", 12, "is no power of 2"),
    "too little shared memory": (f"{VARIANT}.shared", 1000, "not what the tile takes"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, tmp_path: Path) -> None:
    field, value, message = DAMAGE[name]
    idle_gpu.assert_refused(tmp_path, idle_gpu.document(fused(CASE).kernels, set_field(field, value)), message)
