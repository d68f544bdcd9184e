"""Predicted times: the roofline, kernel by kernel, and how near it is to what was measured."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.cpu import predicted as comparison
from onnxopt.codegen.architectures import ARCHS
from onnxopt.fusion.work import Work
from onnxopt.runtime import predicted
from onnxopt.runtime.gpus import catalogue

H200 = catalogue()["h200"]  # 4800 GB/s, 989 TFLOPS of float16, 132 multiprocessors
LAUNCH = 2.5e-6
WHOLE = 132 * 128 * 64  # elements of a product that every multiprocessor takes part in


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work(0), LAUNCH),
        (Work(0, launches=2), 2 * LAUNCH),
        (Work(2_400_000_000), LAUNCH + 1e-3),  # at half of the bandwidth
        (Work(0, 692_300_000_000, "float16", WHOLE), LAUNCH + 1e-3),  # at 70 %
        (Work(0, 692_300_000_000, "bfloat16", 9 * WHOLE), LAUNCH + 1e-3),
        (Work(0, 692_300_000_000, "float16", WHOLE // 2), LAUNCH + 2e-3),
        (Work(0, 692_300_000_000, "float16", 1), LAUNCH + 132e-3),
        (Work(0, 692_300_000_000, "float8e4m3fn", WHOLE), LAUNCH + 0.5e-3),
        (Work(0, 692_300_000_000, "float32", WHOLE), LAUNCH + 2e-3),  # tf32
        (Work(0, 46_900_000_000, "float64", WHOLE), LAUNCH + 1e-3),  # without tensor cores
        (Work(2_400_000_000, 692_300_000_000, "float16", WHOLE // 2), LAUNCH + 2e-3),  # the longer one
    ],
)
def test_a_kernel(work: Work, expected: float) -> None:
    assert predicted.seconds([work], H200) == pytest.approx(expected)
    assert predicted.seconds([work, work], H200) == pytest.approx(2 * expected)


def test_groups_are_parts_of_the_whole() -> None:
    works = [Work(10**9, group="elementwise"), Work(10**8, 10**9, "float16", WHOLE, group="products"), Work(10**6)]
    found = predicted.by_group([*works, works[0]], H200)
    assert list(found) == ["products", "elementwise", "other"]
    assert found["elementwise"] == pytest.approx(2e3 * predicted.seconds(works[:1], H200))
    assert sum(found.values()) == pytest.approx(1e3 * predicted.seconds([*works, works[0]], H200))


def test_every_gpu_that_is_compiled_for_has_its_times() -> None:
    found = predicted.times([Work(10**9), Work(10**9)], [Work(10**9)], ARCHS)
    assert [row.gpu for row in found] == [gpu.key for gpu in catalogue().values() if not gpu.refused]
    assert all(0 < row.after_ms < row.before_ms for row in found)
    assert [row.gpu for row in predicted.times([], [], ["sm_100"])] == ["b200"]


def test_the_stated_error_is_that_of_the_results() -> None:
    """And the results are those of the measurements beside them."""
    document = json.loads((comparison.RESULTS / "predicted_h200.json").read_text())
    models, summary = document["models"], document["summary"]
    measured = comparison.measurements()
    assert {name: (row["measured_before"], row["measured_after"]) for name, row in models.items()} == measured
    assert summary == comparison.summary(models)
    after, before = (summary[side] for side in ("after", "before"))
    held_out = [summary[f"{side}, held out"]["mean"] for side in ("after", "before")]
    stated = [float(number) for number in re.findall(r"\d\.\d+", predicted.ERROR)]
    assert stated == [after["least"], after["greatest"], before["least"], before["greatest"], *held_out]
    assert len(models) - len(comparison.HELD_OUT) == 9
