"""What the library tells cuDNN of a convolution: descriptors, the order of the epilogue, which plans it takes and runs.

A stand-in for libcudnn.so.9 writes down every call (tests/support/fakes/fake_cudnn.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxopt.program.window import Depth, Window
from tests.support.fakes.fake_cudnn import Log, convolution, drive, tensors

POINTWISE, CONVOLUTION, PLAN, FORWARD, OPERATION, GRAPH, PACK, TENSOR = 0, 1, 5, 10, 13, 15, 16, 17
HEURISTIC, KERNEL_CACHE = 4, 34
X, W, Y, BIAS, RESIDUAL, SLOPE = 1, 2, 3, 4, 5, 6
HALF, FLOAT, BFLOAT16 = 2, 0, 9
ADD, MULTIPLY, MINIMUM, RELU, SWISH = 0, 1, 2, 100, 106
BACKWARD_DATA = 12
DEEP = Window((3, 3), depth=Depth(3))
FIRST_SCALAR = 200


def steps(log: Log) -> list[tuple[int, int | None]]:
    """(mode, number of the second operand) of the pointwise operations in the graph's order."""
    (graph,) = log.of_kind(GRAPH)
    found = []
    for number in graph.numbers(801)[1:]:
        values = log.made[number].values
        mode = log.made[int(values[750][0])].numbers(0)[0]
        found.append((mode, log.made[int(values[752][0])].numbers(906)[0] if 752 in values else None))
    return found


def test_tensors_are_nhwc(program: Path, tmp_path: Path) -> None:
    log = drive(program, tmp_path, convolution(bias=2), [[2, 9, 11, 16], [24, 3, 3, 16], [24]])
    assert log.lines[0] == "problem float16 x 2x9x11x16 w 24x3x3x16 y 9x11 pads 1x1x1x1 bias"
    found = tensors(log)
    assert found[X] == [2, 16, 9, 11, 9 * 11 * 16, 1, 11 * 16, 16]
    assert found[W] == [24, 16, 3, 3, 9 * 16, 1, 3 * 16, 16]
    assert found[Y] == [2, 24, 9, 11, 9 * 11 * 24, 1, 11 * 24, 24]
    assert found[BIAS] == [1, 24, 1, 1, 24, 1, 24, 24]
    assert all(d.ok for d in log.of_kind(TENSOR))
    virtual = [t for t in log.of_kind(TENSOR) if t.numbers(907) == [1]]
    assert [t.numbers(901) for t in virtual] == [[FLOAT]]  # what the convolution hands to its epilogue
    assert {t.numbers(901)[0] for t in log.of_kind(TENSOR) if t not in virtual} == {HALF}


def test_the_window(program: Path, tmp_path: Path) -> None:
    window = Window((3, 5), strides=(2, 3), dilations=(1, 2), pads=(1, 2, 3, 4))
    log = drive(program, tmp_path, convolution(2, window=window), [[2, 20, 30, 8], [16, 3, 5, 8]])
    (found,) = log.of_kind(CONVOLUTION)
    assert [found.numbers(name) for name in (105, 104, 103, 102, 106)] == [[1, 2], [3, 4], [2, 3], [1, 2], [2]]
    assert found.numbers(101) == [1] and found.numbers(100) == [FLOAT]
    assert tensors(log)[Y][2:4] == [11, 10]
    (forward,) = log.of_kind(FORWARD)
    assert (forward.values[700], forward.values[701]) == (["1"], ["0"])


def test_volumes_have_three_dims(program: Path, tmp_path: Path) -> None:
    window = Window((3, 5), (2, 3), (1, 2), (1, 2, 3, 4), depth=Depth(2, 3, 4, 5, 6))
    log = drive(program, tmp_path, convolution(bias=2, window=window), [[2, 7, 20, 30, 8], [16, 2, 3, 5, 8], [16]])
    assert log.lines[0] == (
        "problem float16 x 2x7x20x30x8 w 16x2x3x5x8 y 5x11x10 strides 3x2x3 dilations 4x1x2 pads 5x1x2x6x3x4 bias"
    )
    (found,) = log.of_kind(CONVOLUTION)
    names = (105, 104, 103, 102, 106)
    assert [found.numbers(n) for n in names] == [[5, 1, 2], [6, 3, 4], [3, 2, 3], [4, 1, 2], [3]]
    of = tensors(log)
    assert of[X] == [2, 8, 7, 20, 30, 7 * 20 * 30 * 8, 1, 20 * 30 * 8, 30 * 8, 8]
    assert of[W] == [16, 8, 2, 3, 5, 2 * 3 * 5 * 8, 1, 3 * 5 * 8, 5 * 8, 8]
    assert of[Y] == [2, 16, 5, 11, 10, 5 * 11 * 10 * 16, 1, 11 * 10 * 16, 10 * 16, 16]
    assert of[BIAS] == [1, 16, 1, 1, 1, 16, 1, 16, 16, 16]
    assert all(d.ok for d in log.of_kind(TENSOR))


def test_transposed_volumes(program: Path, tmp_path: Path) -> None:
    window = Window((2, 2), (2, 2), depth=Depth(3, 2, 1, 1, 1))
    meaning = convolution(2, window=window, transposed=True, depth_padding=1)
    log = drive(program, tmp_path, meaning, [[1, 4, 5, 6, 16], [16, 3, 2, 2, 8]])
    assert tensors(log)[Y][:5] == [1, 8, 8, 10, 12]
    assert log.of_kind(BACKWARD_DATA)


def test_planes_of_volumes_are_images_where_no_window_goes_over_the_depth(program: Path, tmp_path: Path) -> None:
    log = drive(program, tmp_path, convolution(bias=2), [[2, 7, 9, 11, 16], [24, 3, 3, 16], [24]])
    assert log.lines[0] == "problem float16 x 14x9x11x16 w 24x3x3x16 y 9x11 pads 1x1x1x1 bias"


@pytest.mark.parametrize("transposed", [False, True])
def test_a_window_over_a_depth_alone_is_one_over_the_height(program: Path, tmp_path: Path, transposed: bool) -> None:
    """Of an image whose width is all pixels of a plane."""
    window = Window((1, 1), depth=Depth(3, 2, 1, 1, 0))
    meaning = convolution(2, window=window, transposed=transposed, depth_padding=int(transposed))
    log = drive(program, tmp_path, meaning, [[2, 7, 9, 11, 16], [16, 3, 1, 1, 16]])
    of = "transposed y 15x99" if transposed else "y 3x99"
    assert log.lines[0] == f"problem float16 x 2x7x99x16 w 16x3x1x16 {of} strides 2x1 pads 1x0x0x0"


@pytest.mark.parametrize(
    ("auto_pad", "before", "after"), [("SAME_UPPER", [1, 0], [1, 1]), ("SAME_LOWER", [1, 1], [1, 0])]
)
def test_auto_pad_is_worked_out(program: Path, tmp_path: Path, auto_pad: str, before: list, after: list) -> None:
    window = Window((3, 2), strides=(2, 1), auto_pad=auto_pad)
    log = drive(program, tmp_path, convolution(2, window=window), [[1, 5, 6, 8], [8, 3, 2, 8]])
    (found,) = log.of_kind(CONVOLUTION)
    assert (found.numbers(105), found.numbers(104)) == (before, after)
    assert tensors(log)[Y][2:4] == [3, 6]


def test_groups_are_in_the_weights_channels(program: Path, tmp_path: Path) -> None:
    log = drive(program, tmp_path, convolution(2, group=4), [[1, 5, 5, 32], [64, 3, 3, 8]])
    assert tensors(log)[W][:4] == [64, 8, 3, 3]
    assert "groups 4" in log.lines[0]


def test_a_matrix_is_a_weight_of_1x1(program: Path, tmp_path: Path) -> None:
    log = drive(program, tmp_path, convolution(2, window=Window((1, 1), strides=(2, 2))), [[1, 5, 5, 8], [16, 8]])
    assert tensors(log)[W] == [16, 8, 1, 1, 8, 1, 8, 8]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"bias": 2, "residual": 3, "activation": "relu"}, [(ADD, RESIDUAL), (ADD, BIAS), (RELU, None)]),
        ({"bias": 2, "residual": 3, "activation": "silu", "residual_last": True},
         [(ADD, BIAS), (SWISH, None), (ADD, RESIDUAL)]),
        ({"bias": 2, "activation": "silu"}, [(ADD, BIAS), (SWISH, None)]),
        ({"bias": 2, "activation": "clip", "activation_value": 6.0},
         [(ADD, BIAS), (RELU, None), (MINIMUM, FIRST_SCALAR)]),
        ({"bias": 2, "residual": 3, "activation": "leaky_relu", "activation_value": 0.125, "residual_last": True},
         [(ADD, BIAS), (RELU, None), (ADD, RESIDUAL)]),
        ({"residual": 2, "activation": "hardswish"},
         [(ADD, RESIDUAL), (MULTIPLY, FIRST_SCALAR), (ADD, FIRST_SCALAR + 1), (RELU, None), (MULTIPLY, 101)]),
        ({"bias": 2, "residual": 3, "slope": 4, "activation": "prelu", "residual_last": True},
         [(ADD, BIAS), (RELU, None), (MINIMUM, FIRST_SCALAR), (MULTIPLY, SLOPE), (ADD, 102), (ADD, RESIDUAL)]),
        ({"residual": 2}, [(ADD, RESIDUAL)]),
        ({}, []),
    ],
)  # fmt: skip
def test_the_order_of_the_epilogue(
    program: Path, tmp_path: Path, fields: dict[str, Any], expected: list[tuple[int, int | None]]
) -> None:
    """cuDNN has precompiled engines for the residual before the bias alone; sums commute."""
    shapes = [[2, 9, 9, 16], [16, 3, 3, 16]]
    shapes += [[16]] if "bias" in fields else []
    shapes += [[2, 9, 9, 16]] if "residual" in fields else []
    shapes += [[16]] if "slope" in fields else []
    log = drive(program, tmp_path, convolution(len(shapes), **fields), shapes)
    assert steps(log) == expected
    (pack,) = log.of_kind(PACK)
    operands = {X: 16, W: 32, Y: 4096}
    operands |= {BIAS: 16 * (fields["bias"] + 1)} if "bias" in fields else {}
    operands |= {RESIDUAL: 16 * (fields["residual"] + 1)} if "residual" in fields else {}
    operands |= {SLOPE: 16 * (fields["slope"] + 1)} if "slope" in fields else {}
    given = dict(zip(pack.numbers(1000), pack.numbers(1001), strict=True))
    scalars = {number: given.pop(number) for number in list(given) if number >= FIRST_SCALAR}
    assert given == operands
    assert [n for _, n in steps(log) if n is not None and n >= FIRST_SCALAR] == list(scalars)
    by_value = [t.numbers(906)[0] for t in log.of_kind(TENSOR) if t.values.get(908) == ["1"]]
    assert by_value == list(scalars)
    assert pack.numbers(1003) == [8192]
    swish = [p for p in log.of_kind(POINTWISE) if p.numbers(0) == [SWISH]]
    assert all(p.values[8] == ["1"] for p in swish)


def test_offers_are_walked_until_one_can_be_built(program: Path, tmp_path: Path) -> None:
    log = drive(program, tmp_path, convolution(2), [[1, 5, 5, 8], [8, 3, 3, 8]], FAKE_REFUSED="0 1")
    assert [line.split()[0] for line in log.starting("execute")] == ["12"]


def test_an_epilogue_without_a_plan_runs_behind_the_convolution(program: Path, tmp_path: Path) -> None:
    meaning = convolution(4, bias=2, residual=3, activation="relu")
    shapes = [[2, 9, 9, 16], [16, 3, 3, 16], [16], [2, 9, 9, 16]]
    log = drive(program, tmp_path, meaning, shapes, FAKE_REFUSES_EPILOGUES="1")
    executed, *_ = log.starting("execute")
    (pack,) = log.of_kind(PACK)
    assert executed.startswith("10 with") and pack.numbers(1000) == [X, W, Y]
    assert log.starting("add") == ["48 to 4096, 1", "64 to 4096, 1"] and log.starting("activation") == ["1"]
    assert log.starting("activate") == ["4096"]
    assert log.starting("tensor")[::2][:2] == ["2: 2 16 9 9 strides 1296 1 144 16", "2: 1 16 1 1 strides 16 1 16 16"]


@pytest.mark.parametrize(
    ("activation", "value", "expected"),
    [
        ("clip", 6.0, ["activation 3 to 6", "activate 4096"]),
        ("leaky_relu", 0.125, ["product 3 0", "multiply 4096 4096 4096 times 0.125"]),  # a maximum
        ("leaky_relu", 1.5, ["product 2 0", "multiply 4096 4096 4096 times 1.5"]),  # a minimum
        ("leaky_relu", 0.0, ["activation 1", "activate 4096"]),
        ("silu", 0.0, ["activation 6", "activate 4096"]),
        (
            "hardswish",
            0.0,
            ["fill 8192 with 00000000", "activation 0", "activate 8192", "add 4096 to 8192, 1 times 0.1667",
             "activation 3 to 1", "activate 8192", "product 1 0", "multiply 4096 8192 4096"],
        ),
    ],
)  # fmt: skip
def test_activations_without_a_plan(
    program: Path, tmp_path: Path, activation: str, value: float, expected: list[str]
) -> None:
    meaning = convolution(2, activation=activation, activation_value=value)
    log = drive(program, tmp_path, meaning, [[2, 9, 9, 16], [16, 3, 3, 16]], FAKE_REFUSES_EPILOGUES="1")
    ran = log.lines[next(k for k, line in enumerate(log.lines) if line.startswith("execute")) + 1 :]
    words = ("activat", "blend", "fill", "add", "product", "multiply")
    assert [line for line in ran if line.startswith(words)] == expected


def test_slopes_without_a_plan(program: Path, tmp_path: Path) -> None:
    meaning = convolution(3, activation="prelu", slope=2)
    shapes = [[2, 9, 9, 16], [16, 3, 3, 16], [16]]
    log = drive(program, tmp_path, meaning, shapes, FAKE_REFUSES_EPILOGUES="1")
    words = ("activate", "blend", "add", "multiply")
    assert [line for line in log.lines if line.startswith(words)] == [
        "activate 4096 to 8192", "blend -1 0", "add 4096 to 8192, 1", "multiply 8192 48 8192", "activate 4096",
        "add 8192 to 4096, 1",
    ]  # fmt: skip
    log = drive(program, tmp_path, meaning, shapes)
    minimum = next(d for d in log.of_kind(OPERATION) if log.made[int(d.values[750][0])].numbers(0) == [MINIMUM])
    assert log.made[int(minimum.values[751][0])].numbers(906) == [100]  # of the convolution, not of the ReLU


def test_attributes_of_activations(program: Path, tmp_path: Path) -> None:
    """The slope, and the bound of the ReLU in a HardSwish, whose product reads what the activation is of."""
    shapes = [[1, 9, 9, 16], [16, 3, 3, 16]]
    log = drive(program, tmp_path, convolution(2, activation="leaky_relu", activation_value=0.125), shapes)
    (relu,) = log.of_kind(POINTWISE)
    assert relu.values[5] == ["0.125"] and log.lines[0].endswith("pads 1x1x1x1 leaky_relu 0.125")
    log = drive(program, tmp_path, convolution(2, activation="hardswish"), shapes)
    (bounded,) = [p for p in log.of_kind(POINTWISE) if p.numbers(0) == [RELU]]
    assert bounded.values[4] == ["1"] and 5 not in bounded.values
    assert steps(log)[-1] == (MULTIPLY, 100) and log.lines[0].endswith(" hardswish")


def test_a_transposed_convolution(program: Path, tmp_path: Path) -> None:
    """Backward data of the convolution that w is of: x is its result, y its input."""
    window = Window((3, 2), strides=(2, 3), pads=(1, 0, 0, 1))
    meaning = convolution(2, window=window, transposed=True, output_padding=(1, 2), group=2)
    log = drive(program, tmp_path, meaning, [[2, 5, 4, 8], [8, 3, 2, 12]])
    assert log.lines[0] == "problem float16 x 2x5x4x8 w 8x3x2x12 transposed y 11x12 strides 2x3 pads 1x0x0x1 groups 2"
    (operation,) = log.of_kind(BACKWARD_DATA)
    found = {name: log.made[operation.numbers(name)[0]].numbers(906) for name in (709, 710, 711)}
    assert found == {709: [W], 710: [Y], 711: [X]}
    assert tensors(log)[X] == [2, 8, 5, 4, 160, 1, 32, 8]
    assert tensors(log)[W] == [8, 12, 3, 2, 72, 1, 24, 12]
    assert tensors(log)[Y][:4] == [2, 24, 11, 12]


@pytest.mark.parametrize(
    ("fields", "operations"),
    [
        ({"bias": 2, "activation": "relu"}, 3),
        ({"bias": 2, "activation": "silu"}, 1),
        ({"bias": 2, "transposed": True}, 1),
    ],
)
def test_fallbacks_that_compile_are_not_built(
    program: Path, tmp_path: Path, fields: dict[str, Any], operations: int
) -> None:
    """The convolution alone has a fallback that is ready."""
    log = drive(program, tmp_path, convolution(3, **fields), [[1, 5, 5, 8], [8, 3, 3, 8], [8]], FAKE_ONLY_FALLBACKS="1")
    assert log.starting("execute")
    assert len(log.of_kind(GRAPH)[-1].numbers(801)) == operations


def test_a_residual_behind_the_activation_stays_there(program: Path, tmp_path: Path) -> None:
    meaning = convolution(4, bias=2, residual=3, activation="silu", residual_last=True)
    shapes = [[2, 9, 9, 16], [16, 3, 3, 16], [16], [2, 9, 9, 16]]
    log = drive(program, tmp_path, meaning, shapes, FAKE_REFUSES_EPILOGUES="1")
    ran = [line.split()[0] + " " + line.split()[1] for line in log.lines if line.startswith(("add", "activat"))]
    assert ran == ["add 48", "activation 6", "activate 4096", "add 64"]


def test_no_plan_at_all_is_an_error_that_names_the_convolution(program: Path, tmp_path: Path) -> None:
    log = drive(program, tmp_path, convolution(2), [[1, 5, 5, 8], [8, 3, 3, 8]], FAKE_REFUSED="0 1 2")
    (error,) = log.starting("error")
    assert error.startswith("cuDNN 91900 has no plan for the convolution float16 x 1x5x5x8 w 8x3x3x8 y 5x5")
    assert "ONNXOPT_DISABLE=1" in error


@pytest.mark.parametrize(
    ("dtype", "tf32", "notes", "runs"),
    [
        ("float16", False, "0 1", True),
        ("float32", True, "0 1", True),
        ("float32", False, "0", False),  # tensor cores round float32 to TF32
        ("float32", False, "1", False),
        ("float32", False, "5", True),
        ("float16", False, "2", False),  # sums in less than float32
        ("float16", False, "4", False),  # other bits from run to run
    ],
)
def test_engines_keep_the_promises(
    program: Path, tmp_path: Path, dtype: str, tf32: bool, notes: str, runs: bool
) -> None:
    shapes = [[1, 5, 5, 8], [8, 3, 3, 8]]
    log = drive(program, tmp_path, convolution(2, dtype), shapes, tf32=tf32, FAKE_NOTES=notes)
    assert bool(log.starting("execute")) is runs
    assert bool(log.starting("error")) is not runs


def test_plans_that_want_too_much_workspace_are_left_out(program: Path, tmp_path: Path) -> None:
    shapes = [[1, 5, 5, 8], [8, 3, 3, 8]]
    log = drive(program, tmp_path, convolution(2), shapes, FAKE_WORKSPACE=str((256 << 20) + 1))
    assert log.starting("error")
    assert drive(program, tmp_path, convolution(2), shapes, FAKE_WORKSPACE=str(256 << 20)).starting("execute")


def test_a_measured_choice_is_taken_as_it_is(program: Path, tmp_path: Path) -> None:
    log = drive(program, tmp_path, convolution(2), [[1, 5, 5, 8], [8, 3, 3, 8]], measured=True)
    assert [line.split()[0] for line in log.starting("execute")] == ["42"]
    knobs = [d for d in log.of_kind(7) if d.values]
    assert [(k.numbers(600), k.numbers(601)) for k in knobs] == [([3], [7]), ([5], [1])]


def test_a_measured_choice_that_is_refused_is_chosen_anew(program: Path, tmp_path: Path) -> None:
    shapes = [[1, 5, 5, 8], [8, 3, 3, 8]]
    log = drive(program, tmp_path, convolution(2), shapes, measured=True, FAKE_REFUSED="32")
    assert [line.split()[0] for line in log.starting("execute")] == ["10"]


COMPILED = "0 1 2 4 5 6"  # engines 13 and 17 have kernels ready


@pytest.mark.parametrize(
    ("soon", "runs", "offered"), [(False, "10", [10, 11, 12, 13, 14, 17]), (True, "13", [13, 17, 10, 11, 12, 14])]
)
def test_plans_that_compile(program: Path, tmp_path: Path, soon: bool, runs: str, offered: list[int]) -> None:
    """Four of them at most; where shapes come and go, the others come first."""
    shapes = [[1, 5, 5, 8], [8, 3, 3, 8]]
    more = {"FAKE_CONFIGS": "8", "FAKE_COMPILED": COMPILED}
    log = drive(program, tmp_path, convolution(2), shapes, soon=soon, offers=True, **more)
    assert [line.split()[0] for line in log.starting("execute")] == [runs]
    assert [int(line.split()[0]) for line in log.starting("offered")] == offered
    assert log.starting("offered")[0] == f"{runs} compiled {int(not soon)} knobs 3={int(runs) - 10}"


def test_what_is_measured_at_a_first_run_need_not_be_compiled(program: Path, tmp_path: Path) -> None:
    shapes = [[1, 5, 5, 8], [8, 3, 3, 8]]
    more = {"FAKE_CONFIGS": "8", "FAKE_COMPILED": COMPILED}
    log = drive(program, tmp_path, convolution(2), shapes, offers=True, ready=True, **more)
    assert [int(line.split()[0]) for line in log.starting("offered")] == [13, 17]


def test_threads_that_want_the_same_plan_share_it(program: Path, tmp_path: Path) -> None:
    """What a thread throws comes out where its plan is taken, each time; where nobody takes it, nothing happens."""
    log = drive(program, tmp_path, convolution(2), [[1, 5, 5, 8], [8, 3, 3, 8]], threads=8)
    assert log.starting("caught") == ["as the test asked"] * 2
    assert len(log.of_kind(GRAPH)) == 2  # one for the threads, one for the run
    assert log.starting("execute") and not log.starting("error")


def test_alignment_and_dtype_reach_cudnn(program: Path, tmp_path: Path) -> None:
    log = drive(program, tmp_path, convolution(2, "bfloat16"), [[1, 5, 5, 8], [8, 3, 3, 8]], alignment=4)
    assert {t.numbers(900)[0] for t in log.of_kind(TENSOR)} == {4}
    assert {t.numbers(901)[0] for t in log.of_kind(TENSOR)} == {BFLOAT16}
    assert log.lines[0].endswith("aligned 4")


@pytest.mark.parametrize(
    ("window", "shapes", "problem"),
    [
        (Window((3, 3)), [[1, 2, 5, 8], [8, 3, 3, 8]], "the kernel is larger than the padded input"),
        (Window((3, 3), dilations=(3, 1)), [[1, 6, 5, 8], [8, 3, 3, 8]], "the kernel is larger than the padded input"),
        (Window((3, 3), auto_pad="VALID"), [[1, 2, 5, 8], [8, 3, 3, 8]], "the kernel is larger than the padded input"),
        (Window((3, 3)), [[1, 5, 5, 9], [8, 3, 3, 8]], "the weight does not fit the input"),
        (Window((3, 3)), [[1, 5, 5], [8, 3, 3, 8]], "not \\[N, H, W, C\\]"),
        (DEEP, [[1, 5, 5, 8], [8, 3, 3, 3, 8]], "not \\[N, H, W, C\\] or \\[N, D, H, W, C\\]"),
        (DEEP, [[1, 5, 5, 5, 8], [8, 3, 3, 8]], "the weight does not fit the input"),
        (DEEP, [[1, 5, 5, 5, 8], [8, 2, 3, 3, 8]], "the weight does not fit the input"),
        (DEEP, [[1, 2, 5, 5, 8], [8, 3, 3, 3, 8]], "the kernel is larger than the padded input"),
        (Window((1, 1)), [[1, 5, 5, 4], [8, 3]], "the weight does not fit the input"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    program: Path, tmp_path: Path, window: Window, shapes: list[list[int]], problem: str
) -> None:
    (error,) = drive(program, tmp_path, convolution(2, window=window), shapes).starting("error")
    assert problem.replace("\\", "") in error and "x [" in error and "w [" in error


def test_there_are_not_more_handles_than_streams_at_once(program: Path, tmp_path: Path) -> None:
    """Every session, and every thread that runs it, has a stream of its own; 3 at once and 100 one after the other."""
    log = drive(program, tmp_path, convolution(2), [[1, 5, 5, 8], [8, 3, 3, 8]], handles=True)
    assert not log.starting("error") and log.starting("handles") == ["8"]
