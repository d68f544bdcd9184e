"""Convolutions of parts of wider tensors: what the library tells cuDNN of them, and what it copies.

A stand-in for libcudnn.so.9 writes down every call (tests/support/fakes/fake_cudnn.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fakes.fake_cudnn import Log, convolution, drive, tensors

PACK, TENSOR = 16, 17
X, Y, RESIDUAL = 1, 3, 5
PARTS = {"x": 32, "residual": 40, "y": 64}


def added_last(program: Path, folder: Path, pixels: dict[str, int], **variables: str) -> Log:
    """A convolution with SiLU and a residual behind it, whose tensors are parts of wider ones."""
    meaning = convolution(4, bias=2, residual=3, activation="silu", residual_last=True)
    shapes = [[2, 9, 9, 16], [16, 3, 3, 16], [16], [2, 9, 9, 16]]
    return drive(program, folder, meaning, shapes, pixels=pixels, **variables)


def test_parts_of_wider_tensors(program: Path, tmp_path: Path) -> None:
    log = added_last(program, tmp_path, PARTS)
    assert log.lines[0].endswith("bias silu residual x in 32 residual in 40 y in 64")
    found = tensors(log)
    for number, pixel in ((X, 32), (RESIDUAL, 40), (Y, 64)):
        assert found[number] == [2, 16, 9, 9, 81 * pixel, 1, 9 * pixel, pixel]
    virtual = [t.numbers(903) for t in log.of_kind(TENSOR) if t.numbers(907) == [1]]
    assert virtual == [[81 * 16, 1, 9 * 16, 16]] * 3  # what stays inside lies as it would without
    assert not log.starting("add") and log.starting("workspace") == ["0"]


def test_an_epilogue_behind_a_part_writes_into_the_part(program: Path, tmp_path: Path) -> None:
    log = added_last(program, tmp_path, PARTS, FAKE_REFUSES_EPILOGUES="1")
    assert log.starting("add") == ["48 to 4096, 1", "64 to 4096, 1"]
    strides = [line.split("strides ")[1] for line in log.starting("tensor")]
    assert strides == ["5184 1 576 64", "5184 1 576 64", "16 1 16 16", "3240 1 360 40"]


@pytest.mark.parametrize(
    ("pixels", "copies", "operands"),
    [
        (PARTS, ["16 to 8192, 0", "64 to 13568, 0", "18944 to 4096, 0"], {X: 8192, RESIDUAL: 13568, Y: 18944}),
        ({"x": 32}, ["16 to 8192, 0"], {X: 8192, RESIDUAL: 64, Y: 4096}),
        ({"y": 64}, ["8192 to 4096, 0"], {X: 16, RESIDUAL: 64, Y: 8192}),
    ],
)
def test_parts_that_no_plan_takes_are_copied(
    program: Path, tmp_path: Path, pixels: dict[str, int], copies: list[str], operands: dict[int, int]
) -> None:
    """cuDNN refuses three plans of the convolution, which has no fallbacks, and six of it without its epilogue."""
    log = added_last(program, tmp_path, pixels, FAKE_REFUSES_FIRST="9")
    assert log.starting("add") == copies
    (pack,) = log.of_kind(PACK)
    given = dict(zip(pack.numbers(1000), pack.numbers(1001), strict=True))
    assert {k: given[k] for k in operands} == operands
    assert log.starting("workspace") == [str(5376 * len(pixels))]
    assert tensors(log)[X][4:] == [81 * 16, 1, 9 * 16, 16] and tensors(log)[Y][4:] == [81 * 16, 1, 9 * 16, 16]


def test_whole_tensors_are_not_copied(program: Path, tmp_path: Path) -> None:
    assert "no plan" in added_last(program, tmp_path, {}, FAKE_REFUSES_FIRST="9").starting("error")[0]


@pytest.mark.parametrize(
    ("refused", "workspace", "adds"),
    [
        ("0", 2 * 81 * 64 * 2, ["4096 to 8192, 1 times 0.1667"]),
        ("9", 3 * 5376, ["16 to 13568, 0", "18944 to 8192, 1 times 0.1667"]),
    ],
)
def test_scratch_of_an_activation_behind_a_part(
    program: Path, tmp_path: Path, refused: str, workspace: int, adds: list[str]
) -> None:
    """It lies as the result does, in front of copies."""
    shapes = [[2, 9, 9, 16], [16, 3, 3, 16]]
    more = {"FAKE_REFUSES_EPILOGUES": "1", "FAKE_REFUSES_FIRST": refused}
    meaning = convolution(2, activation="hardswish")
    log = drive(program, tmp_path, meaning, shapes, pixels={"x": 32, "y": 64}, **more)
    assert log.starting("workspace") == [str(workspace)]
    assert log.starting("add") == adds and log.starting("fill") == ["8192 with 00000000"]
