"""Which of cuDNN's kernels run where shapes come and go: none that would be compiled for each, but of usual shapes.

A stand-in for libcudnn.so.9 writes down every call (tests/support/fakes/fake_cudnn.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onnxopt.program.window import Window
from tests.support.fakes.fake_cudnn import Log, convolution, drive

PLAN, GRAPH, PACK, TENSOR = 5, 15, 16, 17
HEURISTIC = 4
X = 1
_PASSES = ("activate", "add", "multiply")


@pytest.mark.parametrize(
    ("soon", "fields", "operations", "behind"),
    [
        (False, {"bias": 2, "activation": "silu"}, 3, []),
        (True, {"bias": 2, "activation": "silu"}, 2, ["activate 4096"]),
        (True, {"bias": 2, "activation": "relu"}, 3, []),
        (True, {"bias": 2, "residual": 3, "activation": "leaky_relu", "activation_value": 0.5}, 3,
         ["multiply 4096 4096 4096 times 0.5"]),
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
    assert len(graph.numbers(801)) == operations
    assert [line for line in log.lines if line.startswith(_PASSES)] == behind
    (pack,) = [d for d in log.of_kind(PACK) if d.ok]
    in_plan = 3 + ("bias" in fields and not meaning.transposed) + (operations == 3 and "residual" in fields)
    assert len(pack.values[1000]) == in_plan


@pytest.mark.parametrize(
    ("fields", "behind"),
    [
        ({"activation": "silu"}, ["activate Y to 4096"]),
        ({"activation": "leaky_relu", "activation_value": 0.5}, ["multiply Y Y 4096 times 0.5"]),
        ({"activation": "silu", "residual": 3, "residual_last": True}, ["activate Y to 4096", "add 64 to 4096, 1"]),
        ({"activation": "silu", "residual": 3}, ["add 64 to R, 0", "activate Y to 4096"]),
    ],
)
def test_channels_of_wider_tensors_are_copied_where_nothing_is_compiled(
    program: Path, tmp_path: Path, fields: dict[str, Any], behind: list[str]
) -> None:
    """The last pass writes the result to its place, and reads a residual where it lies."""
    meaning = convolution(3 + ("residual" in fields), bias=2, **fields)
    shapes = [[2, 5, 4, 8], [8, 3, 3, 8], [8], [2, 5, 4, 8]][: len(meaning.inputs)]
    pixels = {"x": 16, "y": 24, "residual": 32}
    log = drive(program, tmp_path, meaning, shapes, soon=True, pixels=pixels)
    workspace, x, image = 8192, 16, 768  # bytes: 2 x 5 x 4 x 8 elements of 2, rounded up to 256
    copied = workspace + image if "residual" in fields and not meaning.residual_last else None
    y = workspace + image + (image if copied else 0)
    wanted = [f"add {x} to {workspace}, 0", *(b.replace("Y", str(y)).replace("R", str(copied)) for b in behind)]
    assert [line for line in log.lines if line.startswith(_PASSES)] == wanted
    assert log.starting("workspace") == [str(y + image - workspace)]


def test_a_measured_choice_is_compiled_for_its_shape(program: Path, tmp_path: Path) -> None:
    meaning = convolution(3, bias=2, activation="silu")
    log = drive(program, tmp_path, meaning, [[2, 5, 4, 8], [8, 3, 3, 8], [8]], soon=True, measured=True)
    assert [line.split()[0] for line in log.starting("execute")] == ["42"]
    assert len(log.of_kind(GRAPH)) == 1


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


def test_the_choice_for_a_size_is_kept_for_later_processes(program: Path, tmp_path: Path) -> None:
    def asked(height: int) -> int:
        given = {"XDG_CACHE_HOME": str(tmp_path), "ONNXOPT_CACHE_SIZE": "1MB"}
        log = drive(program, tmp_path, convolution(2), [[1, height, 8, 8], [8, 3, 3, 8]], soon=True, **given)
        assert [line.split()[0] for line in log.starting("execute")] == ["10"]
        return len(log.of_kind(HEURISTIC))

    assert [asked(height) for height in (8, 8, 7, 16)] == [1, 0, 0, 1]


def test_tune_asks_for_sizes_beside_the_one_that_runs(program: Path, tmp_path: Path) -> None:
    """What it writes is all that a later process needs."""
    found = tmp_path / "found.json"
    shapes = [[1, 8, 8, 8], [8, 3, 3, 8]]
    log = drive(program, tmp_path, convolution(2), shapes, soon=True, sizes=True, ONNXOPT_CONV_TUNE=str(found))
    pixels = [t.numbers(902) for t in log.of_kind(TENSOR) if t.numbers(906) == [X]]
    assert sorted({n * h * w for n, _, h, w in pixels}) == [2**power for power in range(12)]
    entries = json.loads(found.read_text())["entries"]
    assert len(entries) == 12 and all(e["engine"] == 10 and e["gpu"] == "H200" for e in entries)
    assert "float16 x 1x8x8x8 w 8x3x3x8 y 8x8 pads 1x1x1x1" in [e["about"] for e in entries]
    shapes = [[3, 20, 20, 8], [8, 3, 3, 8]]
    again = drive(program, tmp_path, convolution(2), shapes, soon=True, ONNXOPT_CONV_TUNE=str(found))
    assert not again.of_kind(HEURISTIC)


def loaded(log: Log) -> list[list[str]]:
    """What was executed by each round of loading, as the engine's number, and then by the run."""
    rounds: list[list[str]] = [[]]
    for line in log.lines:
        if line == "loaded":
            rounds.append([])
        elif line.startswith("execute "):
            rounds[-1].append(line.split()[1])
    return rounds


def test_kernels_for_other_sizes_are_loaded_once(program: Path, tmp_path: Path) -> None:
    """One run of each choice over few pixels, or over those of each size up to this one where cuBLASLt may run it."""
    products = convolution(2, window=Window((1, 1)))
    for meaning, weight, most in ((convolution(2), [8, 3, 3, 8], 1), (products, [8, 1, 1, 8], 7)):
        found = {"ONNXOPT_CONV_TUNE": str(tmp_path / f"{most}.json")}
        shapes = [[1, 8, 8, 8], weight]
        drive(program, tmp_path, meaning, shapes, soon=True, sizes=True, **found)
        log = drive(program, tmp_path, meaning, shapes, soon=True, loads=2, **found)
        assert loaded(log) == [["10"] * most, [], ["10"]]
        assert max(int(n) for n in log.starting("scratch")) < 1 << 20


def test_nothing_is_loaded_that_tune_did_not_choose(program: Path, tmp_path: Path) -> None:
    log = drive(program, tmp_path, convolution(2), [[1, 8, 8, 8], [8, 3, 3, 8]], soon=True, loads=1)
    assert loaded(log) == [[], ["10"]] and not log.starting("scratch")


def test_much_memory_is_not_asked_for_to_load_a_kernel(program: Path, tmp_path: Path) -> None:
    found = {"ONNXOPT_CONV_TUNE": str(tmp_path / "found.json")}
    shapes = [[64, 128, 128, 64], [64, 1, 1, 64]]
    meaning = convolution(2, window=Window((1, 1)))
    drive(program, tmp_path, meaning, shapes, soon=True, sizes=True, **found)
    log = drive(program, tmp_path, meaning, shapes, soon=True, loads=1, **found)
    assert log.starting("scratch") and max(int(n) for n in log.starting("scratch")) <= 64 << 20


def test_what_cannot_be_loaded_is_left_out(program: Path, tmp_path: Path) -> None:
    found = {"ONNXOPT_CONV_TUNE": str(tmp_path / "found.json")}
    shapes = [[1, 8, 8, 8], [8, 3, 3, 8]]
    drive(program, tmp_path, convolution(2), shapes, soon=True, sizes=True, **found)
    log = drive(program, tmp_path, convolution(2), shapes, soon=True, loads=1, FAKE_REFUSED="0", **found)
    assert loaded(log)[0] == [] and len(loaded(log)[1]) == 1
