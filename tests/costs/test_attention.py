"""The choice between our attention of many queries and ONNX Runtime's, beside what both were measured to take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnxopt.costs.attention import AttentionSize, pays

RESULTS = Path(__file__).parents[2] / "benchmarks/results/attention/gpu_attention_waves_h200.json"
ROWS = json.loads(RESULTS.read_text("utf-8"))["rows"]
WIDTH = 64  # of heads whose time is expected by waves


def chosen(row: dict[str, int], heads: int | None = None) -> bool:
    every = row["batch"] * row["heads"] if heads is None else heads
    return pays(AttentionSize(row["keys"], row["width"], hopper=True, queries=row["queries"], heads=every or None))


@pytest.mark.parametrize("row", [row for row in ROWS if row["width"] == WIDTH], ids=str)
def test_no_attention_that_takes_longer_is_chosen_and_none_that_gains_is_left(row: dict[str, int]) -> None:
    ratio = row["ours_us"] / row["onnxruntime_us"]
    assert ratio < 1.01 if chosen(row) else ratio > 0.97


def test_where_a_size_is_not_known_keys_alone_decide() -> None:
    long = next(row for row in ROWS if row["keys"] > 1000 and row["width"] == WIDTH and chosen(row))
    assert not chosen(long, heads=0)
    assert not pays(AttentionSize(long["keys"], WIDTH, hopper=True, heads=32))
    assert not pays(AttentionSize(None, WIDTH, hopper=True, queries=long["queries"], heads=32))
