"""The work on a graph grows in proportion to its nodes, counted in calls of functions, which no other load changes."""

from __future__ import annotations

import cProfile
import math
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from benchmarks.cases.growing_graphs import FORMS
from onnxopt.artifact.report import facts
from onnxopt.codegen import generate, kernels_json
from onnxopt.fusion import entry_points, fuse, outline
from onnxopt.fusion.lower import lower
from onnxopt.graph import normalize, read, rewrite, write
from onnxopt.graph.passes.transposed_weights import TransposeWeightsPass
from onnxopt.kinds import KINDS

SMALL, LARGE = 2_000, 8_000
STEEPEST = 1.4  # of log(calls) over log(nodes); 1 is linear, 2 quadratic


def calls(work: Callable[[], object]) -> int:
    """How many functions are called, those written in C included."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def slope(small: int, large: int) -> float:
    return math.log(large / small) / math.log(LARGE / SMALL)


def graph_work(path: Path, folder: Path) -> None:
    """From a model's file to the optimized model's file, without compiling and verifying."""
    source = read.load(path)
    before = facts.count(source.model)
    model = normalize.normalize(source.model).model
    rewrite.rewrite(model, folder)
    TransposeWeightsPass()(model)
    plan = lower(fuse.fuse(model, KINDS), model.opset_imports)
    functions = outline.functions(plan, model.opset_imports)
    kernels = entry_points.choose(functions, model.opset_imports, plan.shapes)
    outline.replace(model, functions)
    generate.generate(kernels)
    kernels_json.to_json(kernels, None)
    write.save(model, folder)
    facts.gather(before, model, kernels)


def test_fuse_is_linear(tmp_path: Path) -> None:
    counts = []
    for nodes in (SMALL, LARGE):
        onnx.save(FORMS["wide"](nodes), tmp_path / "model.onnx")
        model = read.load(tmp_path / "model.onnx").model
        counts.append(calls(lambda model=model: fuse.fuse(model, KINDS)))
    assert slope(*counts) < STEEPEST, counts


@pytest.mark.parametrize(("form", "share"), [("parallel", 1), ("attention", 4)])
def test_graph_work_is_linear(form: str, share: int, tmp_path: Path) -> None:
    """share: the graphs have this part of the nodes, where counting takes long."""
    counts = []
    for nodes in (SMALL, LARGE):
        path, folder = tmp_path / "model.onnx", tmp_path / str(nodes)
        onnx.save(FORMS[form](nodes // share), path)
        folder.mkdir()
        counts.append(calls(lambda path=path, folder=folder: graph_work(path, folder)))
    assert slope(*counts) < STEEPEST, counts
