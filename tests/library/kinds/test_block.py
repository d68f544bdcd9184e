"""Blocks of convolutions on the GPU against float64, what calls refuse, and damaged files."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.block import TABLE, Halves
from cases.dense_block import Dense
from cases.models import fuse, laid_out, outline
from cases.table import Row
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.block.kind import BLOCK
from onnxopt.kinds.convolution.kind import CONVOLUTION
from onnxopt.program.block import BlockVariant
from onnxopt.program.convolution import DenseTile
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.fakes import idle_gpu
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = pytest.mark.usefixtures("library")
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}  # of the largest |value|: five convolutions, each rounded to storage


def block_of(case: Halves | Dense) -> tuple[ir.Model, Kernel]:
    """The model with its block as a function without a body, which only the library can run, and its kernel."""
    model = laid_out(case.model())
    (made,) = [k for k in outline(model, fuse(model)) if k.kind.name == "block"]
    return model, made


def row(kernel: Kernel) -> dict[str, Any]:
    kernel.program.verify()
    return {"name": kernel.name, "kind": "block", **kernel.program.to_json(), "cpu": False, "variants": []}


def session(folder: Path, halves: Halves, **options: str) -> ort.InferenceSession:
    """On the GPU. options: of its provider."""
    model, kernel = block_of(halves)
    proto = ir.to_proto(model)
    proto = with_wrong_bodies(proto, [kernel.name])
    settings = ort.SessionOptions()
    settings.register_custom_ops_library(str(artifact.write(folder, [row(kernel)])))
    providers = [("CUDAExecutionProvider", options), "CPUExecutionProvider"]
    return ort.InferenceSession(proto.SerializeToString(), settings, providers=providers)


def assert_close(found: np.ndarray, halves: Halves, feeds: dict[str, np.ndarray]) -> None:
    expected = halves.expected(feeds)
    scale = np.abs(expected).max(initial=1.0)
    np.testing.assert_allclose(found.astype(np.float64), expected, atol=TOLERANCE[halves.dtype] * scale, rtol=0)


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.name)
def test_results(row: Row, tmp_path: Path) -> None:
    """A stand-in for cuDNN convolves, with the strides that the library states."""
    cases = []
    for case in row.cases:
        fused = TABLE.fused(case)
        assert [k.kind for k in fused.kernels].count(BLOCK) == 1
        by_cudnn = [dataclasses.replace(k, variants=()) for k in fused.kernels]
        cases.append((fused.optimized, by_cudnn, [case.feeds()]))
    for case, (outputs,) in zip(
        row.cases, idle_gpu.products(tmp_path / "run", cases, (BLOCK, CONVOLUTION)), strict=True
    ):
        assert TABLE.worst(case, outputs, case.expected(case.feeds())) <= 1, case


Shapes = list[tuple[int, ...]]
WHOLE: Shapes = [(2, 5, 6, 64), (128, 64), (128,), (64, 3, 3, 64), (64,), (64, 3, 3, 64), (64,)]


_ONE_PAIR = Halves(depth=1)


def described(change: idle_gpu.Change | None = None, case: Halves | Dense = _ONE_PAIR) -> dict[str, Any]:
    """A kernels.json of a block, named as in hand-made models. change: of its row."""
    _, kernel = block_of(case)
    changed = copy.deepcopy(row(kernel)) | {"name": artifact.NAME}
    if change is not None:
        change(changed)
    return idle_gpu.document_of(changed)


def calls(folder: Path, described: dict[str, Any], every: list[Shapes]) -> list[dict[str, tuple[int, ...]] | str]:
    names = [("float16", [f"d{k}{i}" for i in range(len(s))]) for k, s in enumerate(every[0])]
    model = artifact.model(artifact.wrong_body("float16"), names, [("float16", None)])
    feeds = [{f"x{k}": np.zeros(s, np.float16) for k, s in enumerate(shapes)} for shapes in every]
    return idle_gpu.calls(folder / "run", model, described, feeds)


@pytest.mark.parametrize(
    ("at", "shape", "problem"),
    [
        (0, (2, 5, 6, 72), "a tensor [2, 5, 6, 72] that should have 64 channels"),
        (0, (2, 5, 64), "is not [N, H, W, C]"),
        (1, (128, 72), "the weight does not fit the input"),
        (3, (64, 3, 3, 60), "the weight does not fit the input"),
        (4, (63,), "the bias has not one number a channel"),
    ],
)
def test_shapes_that_do_not_fit(tmp_path: Path, at: int, shape: tuple[int, ...], problem: str) -> None:
    (said,) = calls(tmp_path, described(), [[*WHOLE[:at], shape, *WHOLE[at + 1 :]]])
    assert problem in said and artifact.NAME in said


def test_a_part_of_an_input(tmp_path: Path) -> None:
    part = described(_set("steps.0.x", {"tensor": 0, "first": 32, "channels": 64, "of": 96}))
    wider = [[(n, 5, 6, 96), *WHOLE[1:]] for n in (2, 0)]
    said, *shapes = calls(tmp_path, part, [WHOLE, *wider])
    assert "that should have 96 channels" in said
    assert shapes == [{"y0": (2, 5, 6, 192)}, {"y0": (0, 5, 6, 192)}]


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(described: dict[str, Any]) -> None:
        *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        at: Any = described
        for key in parents:
            at = at[key]
        at[last] = value

    return change


DENSE: Shapes = [(2, 5, 6, 8), *[(8, 3, 3, 8 + 8 * k) if of == "w" else (8,) for k in range(4) for of in ("w", "b")]]


def test_copies(tmp_path: Path) -> None:
    """A batch of any size, and shapes that do not fit."""
    dense = described(case=Dense(c=8, growth=8))
    narrow = [(2, 5, 6, 7), *DENSE[1:]]
    many = [(0, 5, 6, 8), *DENSE[1:]]
    found, said, none = calls(tmp_path, dense, [DENSE, narrow, many])
    assert found == {"y0": (2, 5, 6, 40)} and none == {"y0": (0, 5, 6, 40)}
    assert "a tensor [2, 5, 6, 7] that should have 8 channels" in said
    # A copy of an input whose height is another one.
    changed = copy.deepcopy(dense)
    (block,) = changed["kernels"]
    block["inputs"] = [*block["inputs"], "float16"]
    for step in block["steps"]:
        for part in (step["x"], step["y"]):
            part["tensor"] += part["tensor"] == len(DENSE)
    block["copies"][0]["x"]["tensor"] = len(DENSE)
    block["copies"][0]["y"]["tensor"] = len(DENSE) + 1
    (said,) = calls(tmp_path, changed, [[*DENSE, (2, 4, 6, 8)]])
    assert "a block writes parts of one tensor that are [2, 4, 6, 40] and [2, 5, 6, 40]" in said


ENTRY = BlockVariant("s", "", 32, 8, 1, 128, tile=DenseTile(32, 32, 2, 16, 1)).to_json()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_set("variants", [{**ENTRY, "step": 5}]), "no convolution that a kernel of ours runs"),
        (_set("usual", [[[1, 5, 6, 64]]]), "is not a shape for each input"),
        (_set("usual", [[[1, 0, 6, 64], *([[1]] * 6)]]), "is not an integer from 1"),
        (_set("usual", [[[1] * 17, *([[1]] * 6)]]), "has too many dims"),
    ],
)
def test_damaged_files(tmp_path: Path, change: Callable[[dict[str, Any]], None], problem: str) -> None:
    idle_gpu.assert_refused(tmp_path, described(change), problem)


def of_any_shape(case: Halves | Dense) -> tuple[onnx.ModelProto, dict[str, Any], list[tuple[int, ...]]]:
    """The model of a block for images of any size, the row of its kernel, and the shapes of its weights."""
    model, kernel = block_of(case)
    (_, weights), proto = _inputs_of(kernel, model), ir.to_proto(model)
    for dim, name in zip(proto.graph.input[0].type.tensor_type.shape.dim, "NHW", strict=False):
        dim.dim_param = name
    del proto.graph.value_info[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return with_wrong_bodies(proto, [kernel.name]), row(kernel), weights


SIZES = [(2, 5, 6), (1, 6, 9), (3, 2, 1), (2, 5, 6)]


@pytest.mark.parametrize(
    "case", [Halves(), *(Dense(activation=of) for of in ("leaky_relu", "prelu", "silu", "hardswish"))], ids=str
)
def test_results_of_any_size(case: Halves | Dense, tmp_path: Path) -> None:
    """What is ready runs, with passes over its results."""
    proto, described, _ = of_any_shape(case)
    cases = [dataclasses.replace(case, n=n, h=h, w=w) for n, h, w in SIZES]
    feeds = [of.feeds(seed) for seed, of in enumerate(cases)]
    (results,) = idle_gpu.run(tmp_path / "run", idle_gpu.document_of(described), [(proto, feeds)], multiplies=True)
    for result, of, given in zip(results, cases, feeds, strict=True):
        assert not isinstance(result, str), result
        assert TABLE.worst(of, result, of.expected(given)) <= 1, of


@pytest.mark.gpu
@pytest.mark.parametrize("usual", [[], [(2, 5, 6)]], ids=["none", "one"])
def test_blocks_of_any_shape_on_the_gpu(tmp_path: Path, usual: list[tuple[int, int, int]]) -> None:
    """With plans that were made ahead for one shape, and with those that are ready at a first run."""
    first = Halves()
    proto, changed, weights = of_any_shape(first)
    if usual:
        changed["usual"] = [[[*size, first.c], *map(list, weights)] for size in usual]
    settings = ort.SessionOptions()
    settings.register_custom_ops_library(str(artifact.write(tmp_path, [changed])))
    ready = ort.InferenceSession(proto.SerializeToString(), settings, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    for seed, (n, h, w) in enumerate([(2, 5, 6), (1, 16, 9), (3, 1, 1), (2, 5, 6), (1, 40, 33)]):
        halves = dataclasses.replace(first, n=n, h=h, w=w)
        feeds = halves.feeds(seed)
        assert_close(ready.run(None, feeds)[0], halves, feeds)


def _inputs_of(kernel: Kernel, model: ir.Model) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The shapes of a block's first input and of its weights."""
    (call,) = [n for n in model.graph if n.op_type == kernel.name]
    shapes = [tuple(int(d) for d in v.shape.numpy()) for v in call.inputs if v is not None and v.shape is not None]
    return shapes[0], shapes[1:]


@pytest.mark.gpu
def test_two_blocks_in_a_cuda_graph_on_the_gpu(tmp_path: Path) -> None:
    """Blocks of one stream share the memory for what they hand on, and captured graphs go on using it."""
    for k, halves in enumerate((Halves(), dataclasses.replace(Halves(), n=4, h=17, w=9, depth=3))):
        ready = session(tmp_path / str(k), halves, enable_cuda_graph="1")
        binding, feeds = ready.io_binding(), halves.feeds(1)
        x = ort.OrtValue.ortvalue_from_numpy(feeds["x"], "cuda", 0)
        shape = halves.expected(feeds).shape
        y = ort.OrtValue.ortvalue_from_shape_and_type(shape, feeds["x"].dtype, "cuda", 0)
        binding.bind_ortvalue_input("x", x)
        binding.bind_ortvalue_output("y", y)
        for seed in (1, 2, 3, 4):
            feeds = halves.feeds(seed)
            x.update_inplace(feeds["x"])
            ready.run_with_iobinding(binding)
            assert_close(y.numpy(), halves, feeds)
