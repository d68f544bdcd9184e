"""Which of cuDNN's kernels run where shapes come and go: none that would be compiled for each, but of usual shapes.

A stand-in for libcudnn.so.9 writes down every call (tests/support/fake_cudnn.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxopt.program.window import Window
from tests.support.fake_cudnn import convolution, drive

PLAN, GRAPH, PACK, TENSOR = 5, 15, 16, 17
HEURISTIC, KERNEL_CACHE = 4, 34
X = 1


@pytest.mark.parametrize(
    ("soon", "fields", "operations", "behind"),
    [
        (False, {"bias": 2, "activation": "silu"}, 3, []),
        (True, {"bias": 2, "activation": "silu"}, 2, ["activate 4096"]),
        (True, {"bias": 2, "activation": "relu"}, 3, []),
        (True, {"bias": 2, "residual": 3, "activation": "leaky_relu", "activation_value": 0.5}, 3, ["activate 4096"]),
        (True, {"bias": 2, "residual": 3, "activation": "silu", "residual_last": True}, 2,
         ["activate 4096", "add 64 to 4096, 1"]),
        (True, {"bias": 2, "transposed": True}, 1, ["add 48 to 4096, 1"]),
    ],
)  # fmt: skip
def test_where_shapes_come_and_go_nothing_is_compiled(
    program: Path, tmp_path: Path, soon: bool, fields: dict[str, Any], operations: int, behind: list[str]
) -> None:
    """Passes follow what is ready."""
    meaning = convolution(3 + ("residual" in fields), **fields)
    shapes = [[2, 5, 4, 8], [8, 3, 3, 8], [8], [2, 5, 4, 8]][: len(meaning.inputs)]
    log = drive(program, tmp_path, meaning, shapes, soon=soon)
    *_, graph = log.of_kind(GRAPH)
    assert len(graph.numbers(801)) == operations and 803 not in graph.values
    assert [line for line in log.lines if line.startswith(("activate", "add"))] == behind
    (pack,) = [d for d in log.of_kind(PACK) if d.ok]
    in_plan = 3 + ("bias" in fields and not meaning.transposed) + (operations == 3 and "residual" in fields)
    assert len(pack.values[1000]) == in_plan


@pytest.mark.parametrize("fixed", ["0", "1"])
def test_channels_of_wider_tensors_get_a_kernel_of_any_shape(program: Path, tmp_path: Path, fixed: str) -> None:
    """An older cuDNN has none; then passes follow what is ready, between copies."""
    meaning = convolution(3, bias=2, activation="silu")
    shapes = [[2, 5, 4, 8], [8, 3, 3, 8], [8]]
    log = drive(program, tmp_path, meaning, shapes, soon=True, pixels={"y": 24}, FAKE_FIXED_SHAPES=fixed)
    *_, graph = [d for d in log.of_kind(GRAPH) if d.ok]
    *_, plan = log.of_kind(PLAN)
    of_any_shape = fixed == "0"
    assert len(graph.numbers(801)) == (3 if of_any_shape else 1)
    assert (graph.values.get(803) == ["1"]) is of_any_shape
    assert [d.ok for d in log.of_kind(KERNEL_CACHE)] == [True] * of_any_shape
    assert (406 in plan.values) is of_any_shape


def test_a_measured_choice_is_compiled_for_its_shape(program: Path, tmp_path: Path) -> None:
    meaning = convolution(3, bias=2, activation="silu")
    log = drive(program, tmp_path, meaning, [[2, 5, 4, 8], [8, 3, 3, 8], [8]], soon=True, measured=True)
    assert [line.split()[0] for line in log.starting("execute")] == ["42"]
    assert [803 in graph.values for graph in log.of_kind(GRAPH)] == [False]


def test_the_heuristic_is_asked_for_a_power_of_two_of_pixels(program: Path, tmp_path: Path) -> None:
    """So the plan of a shape does not depend on the shapes that came before."""
    window = Window((3, 3), strides=(1, 2), auto_pad="SAME_UPPER")
    log = drive(program, tmp_path, convolution(2, window=window), [[3, 5, 7, 8], [8, 3, 3, 8]], soon=True)
    asked, own = log.of_kind(GRAPH)
    (heuristic,) = log.of_kind(HEURISTIC)
    assert log.made[int(heuristic.values[201][0])] is asked
    dims = [t.numbers(902) for t in log.of_kind(TENSOR) if t.numbers(906) == [X]]
    assert dims == [[1, 8, 8, 16], [3, 8, 5, 7]]  # 64 pixels of results for 60
    (asked_plan, plan) = log.of_kind(PLAN)
    assert asked_plan.ok and plan.ok and own.ok
    assert [line.split()[0] for line in log.starting("execute")] == ["10"]


def test_a_window_that_fits_no_such_shape_is_asked_for_as_it_is(program: Path, tmp_path: Path) -> None:
    log = drive(program, tmp_path, convolution(2, window=Window((9, 1))), [[1, 9, 2, 8], [8, 9, 1, 8]], soon=True)
    (graph,) = log.of_kind(GRAPH)
    assert graph.ok and log.of_kind(HEURISTIC) and log.starting("execute")
