"""The work on a graph grows in proportion to its nodes, counted in calls of functions, which no other load changes."""

from __future__ import annotations

import cProfile
import functools
import math
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from benchmarks.cases.growing_graphs import FORMS
from onnxopt.artifact.report import facts
from onnxopt.codegen import generate, kernels_json
from onnxopt.fusion import entry_points, fuse, outline
from onnxopt.fusion.context import Context
from onnxopt.fusion.lower import lower
from onnxopt.graph import normalize, read, rewrite, write
from onnxopt.graph.passes.transposed_weights import TransposeWeightsPass
from onnxopt.graph.shapes.shapes import infer
from onnxopt.kinds import KINDS
from onnxopt.kinds.rowwise import match as rowwise
from onnxopt.kinds.scan import match as scan
from tests.support.graphs import graph, node

SMALL, LARGE = 500, 2_000
MANY = 200_000  # nodes of other regions
BODIES = {  # of a kind's region: three nodes
    "rowwise": "a = Cast<to = 1>(x)  s = Softmax<axis = -1>(a)  y = Cast<to = 7>(s)",
    "scan": "a = Neg(x)  s = CumSum(a, axis)  y = Abs(s)",
}
STEEPEST = 1.1  # of log(calls) over log(nodes): 1 is linear; one call for each two nodes makes 1.2 of it


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
    TransposeWeightsPass(gpu=True)(model)
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


@pytest.mark.parametrize(("form", "share"), [("parallel", 4), ("residual", 4), ("attention", 4)])
def test_graph_work_is_linear(form: str, share: int, tmp_path: Path) -> None:
    """share: the graphs have this part of the nodes, where counting takes long."""
    counts = []
    for nodes in (SMALL, LARGE):
        path, folder = tmp_path / "model.onnx", tmp_path / str(nodes)
        onnx.save(FORMS[form](nodes // share), path)
        folder.mkdir()
        counts.append(calls(lambda path=path, folder=folder: graph_work(path, folder)))
    assert slope(*counts) < STEEPEST, counts


@functools.cache
def _others() -> set[ir.Node]:
    """Nodes of other regions, of which making takes longer than all else."""
    return {ir.Node("", "Tanh", []) for _ in range(MANY)}


def _grow(kind: str, taken: set[ir.Node]) -> float:
    """CPU seconds of growing one region of this kind to its three nodes; `taken` are nodes of other regions."""
    model = graph("int64[8, 64] x", "int64[8, 64] y", BODIES[kind], constants="int64 axis = {1}")
    context = Context(model.graph, model.opset_imports, infer(model), set())
    (of_kind,) = (k for k in KINDS if k.name == kind)
    start = time.process_time()
    if kind == "scan":
        nodes = scan._Growth(context, of_kind, node(model, "s"), taken).region().nodes
    else:
        growth = rowwise._Growth(context, of_kind, node(model, "s"), taken)
        growth.grow()
        nodes = growth.region().nodes
    seconds = time.process_time() - start
    assert len(nodes) == 3
    return seconds


@pytest.mark.parametrize("kind", BODIES)
def test_a_region_grows_as_fast_in_a_large_graph(kind: str) -> None:
    """One pass over the taken nodes for each neighbour would take a hundred times as long as all else together."""
    alone, among_many = (min(_grow(kind, taken) for _ in range(5)) for taken in (set(), _others()))
    assert among_many < 10 * alone, (alone, among_many)
