"""Regions of group norms: what is found, what joins them, what stays, and that no result changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.group_norm import FORMS, Case, fused
from cases.models import fuse
from onnxopt.codegen.generate import generate
from onnxopt.fusion.region import FusionPlan
from onnxopt.kinds.group_norm.kind import GROUP_NORM
from onnxopt.program.core import TransformRead
from onnxopt.program.group_norm import GroupNorm, GroupNormVariant
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.graphs import graph

_TO_NCHW, _TO_NHWC = "Transpose<perm = [0, 3, 1, 2]>", "Transpose<perm = [0, 2, 3, 1]>"
_NORM = "n = GroupNormalization<num_groups = 4>(t, s, b)"
_CONSTANTS = "float16[8] s = {1,1,1,1,1,1,1,2}, float16[8] b = {1,1,1,1,1,1,1,2}, float16[8] c = {1,2,3,4,5,6,7,8}"


def _plan(body: str, inputs: str = "", dtype: str = "float16", x: str = "N, H, W, 8", outputs: str = "") -> FusionPlan:
    constants = _CONSTANTS.replace("float16", dtype)
    text = f"{dtype}[{x}] x{inputs}", f"{dtype}[] y{outputs}"
    return fuse(graph(*text, body, constants=constants, opset=22))


def _norm(body: str = "", behind: str = "y = Hardmax(q)", norm: str = _NORM, x: str = "x") -> str:
    return f"{body} t = {_TO_NCHW}({x}) {norm} q = {_TO_NHWC}(n) {behind}"


def _found(plan: FusionPlan) -> list[list[str]]:
    return [[str(n.outputs[0].name) for n in r.nodes] for r in plan.regions if r.kind is GROUP_NORM]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_found(form: str, dtype: str) -> None:
    case = Case((2, 5, 6, 24), 24 if form == "instance" else 4, dtype, form, "time", "affine_silu")
    (region,) = fused(case).plan.regions
    assert region.kind is GROUP_NORM and not GROUP_NORM.pays_on_cpu(region)
    meaning = region.meaning
    assert isinstance(meaning, GroupNorm)
    meaning.verify()
    assert (meaning.channels, meaning.groups, meaning.epsilon) == (24, case.groups, pytest.approx(1e-5))
    assert meaning.prologue is not None and meaning.prologue.reads[0].form == "sample"
    assert meaning.epilogue.reads[0].form == ("group" if form.startswith("spelled") else "channel")
    assert region.traffic.launches_before == 6
    generate(fused(case).kernels)


@pytest.mark.parametrize(("part", "read"), [(16, ["t", "scale", "bias", "rows"]), (5, ["t", "scale", "bias", "e"])])
def test_a_part_of_a_row_is_read_where_it_lies_if_it_is_aligned(part: int, read: list[str]) -> None:
    found = fused(Case((2, 5, 6, 24), 4, "float16", "group", "time", part=part))
    region = next(r for r in found.plan.regions if r.kind is GROUP_NORM)
    assert sorted(str(v.name) for v in region.inputs) == sorted(read)
    meaning = region.meaning
    assert isinstance(meaning, GroupNorm) and meaning.prologue is not None
    (of_row,) = meaning.prologue.reads
    assert (of_row.row, of_row.first) == ((56, 16) if part == 16 else (None, 0))


def test_a_scale_of_ones_and_a_bias_of_zeros_are_not_read() -> None:
    (region,) = fused(dataclasses.replace(Case((2, 5, 6, 24), 4), ones=True)).plan.regions
    assert isinstance(region.meaning, GroupNorm) and region.meaning.epilogue.reads == ()
    (region,) = fused(Case((2, 5, 6, 24), 4)).plan.regions
    assert isinstance(region.meaning, GroupNorm)
    assert region.meaning.epilogue.reads == (TransformRead(1, "group"), TransformRead(2, "group"))


@pytest.mark.parametrize(
    ("body", "inputs", "nodes"),
    [
        (_norm(), "", "t n q"),
        (_norm(behind="m = Mul(q, c) g = Sigmoid(m) y = Mul(m, g)"), "", "t n q m g y"),
        (_norm(behind="y = Add(q, r)"), ", float16[N, H, W, 8] r", "t n q y"),
        (_norm("a = Add(x, e)", x="a"), ", float16[N, 1, 1, 8] e", "a t n q"),
        (_norm("a = Add(x, e)", x="a"), ", float16[1, 1, 1, 1] e", "a t n q"),
        # what another node reads too is stored by a kernel of its own
        (_norm("a = Add(x, c) z = Hardmax(a)", x="a"), "", "t n q"),
        (_norm("a = Add(x, r)", x="a"), ", float16[N, H, W, 8] r", "t n q"),  # the kernel would read two maps
        (_norm(behind="y = Add(q, r)"), ", float16[1, H, W, 8] r", "t n q"),  # not a map of every sample
        (_norm(behind="y = Add(q, e)"), ", float16[M, 1, 1, 8] e", "t n q"),  # of other samples
        (_norm(behind="y = Relu(q) z = Hardmax(q)"), "", "t n q"),
    ],
)
def test_neighbours(body: str, inputs: str, nodes: str) -> None:
    outputs = ", float16[] z" if "z =" in body else ""
    assert _found(_plan(body, inputs, outputs=outputs)) == [nodes.split()]


@pytest.mark.parametrize(
    ("norm", "x", "dtype"),
    [
        (_NORM, "N, H, W, 8", "double"),
        ("n = GroupNormalization<num_groups = 4>(x, s, b)", "N, 8, H, W", "float16"),  # NCHW
        ("n = LpNormalization(t)", "N, H, W, 8", "float16"),
        ("r = Reshape(t, g) i = InstanceNormalization(r, u, u) n = Reshape(i, k)", "N, H, W, 8", "float16"),
    ],
)
def test_what_stays(norm: str, x: str, dtype: str) -> None:
    inputs = f", int64[3] g, {dtype}[4] u, int64[4] k" if "r =" in norm else ""
    assert _found(_plan(_norm(norm=norm), inputs, dtype, x)) == []


def test_groups_of_more_channels_than_a_block_has_threads_stay() -> None:
    assert not any(r.kind is GROUP_NORM for r in fused(Case((1, 2, 2, 2050), 2, form="group")).plan.regions)
    assert any(r.kind is GROUP_NORM for r in fused(Case((1, 2, 2, 2048), 2, form="group")).plan.regions)


def _held(case: Case) -> tuple[list[tuple[int, int, int]], list[str]]:
    """(columns, blocks of a cluster, threads) of the held entry points, and the layouts of the others."""
    (kernel,) = fused(case).kernels
    found = [v for v in kernel.variants if isinstance(v, GroupNormVariant)]
    assert len(found) == len(kernel.variants)
    held = [(v.columns, v.cluster, v.threads) for v in found if v.layout == "held"]
    return held, [v.layout for v in found if v.layout != "held"]


@pytest.mark.parametrize(
    ("x", "held", "is_split"),
    [
        ((4, 32, 32, 160), [(5, 2, 320), (5, 4, 320)], True),
        ((4, 16, 16, 320), [(5, 1, 320), (5, 2, 320)], False),
        ((4, 8, 8, 640), [(5, 1, 160)], False),
        ((4, 16, 16, 480), [(15, 1, 480), (15, 2, 352), (15, 4, 352)], False),
        ((2, 64, 64, 320), [(5, 8, 320)], True),
        ((1, 512, 512, 128), [], True),
    ],
)
def test_entry_points_of_known_sizes(x: tuple[int, int, int, int], held: list, is_split: bool) -> None:
    found = _held(Case(x, 32, "float16", "group"))
    assert found == (held, [*["split"] * 2 * is_split, "looped"])


def test_unknown_sizes_have_all_entry_points() -> None:
    held, others = _held(Case((2, 5, 6, 24), 4, form="group", known=False))
    assert [v[1:] for v in held] == [(1, 256), (2, 256), (4, 256), (8, 256), (8, 512), (8, 512)]
    assert others == ["split", "split", "looped"]


def test_alternatives_are_other_launch_shapes() -> None:
    (kernel,) = fused(Case((4, 32, 32, 160), 32, "float16", "group")).kernels
    known = {v.symbol for v in kernel.variants}
    others = list(GROUP_NORM.alternatives(kernel))
    assert len(others) > 8 and not known & {v.symbol for v in others}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("form", FORMS)
def test_results_do_not_change_without_the_library(form: str, tmp_path: Path) -> None:
    case = Case((2, 7, 9, 12), 12 if form == "instance" else 4, "float32", form, "time", "affine_silu")
    made = fused(case)
    feeds = case.feeds()
    expected = case.expected(feeds)
    for library in (None, artifact.copy_library(tmp_path)):
        found = artifact.session(made.optimized, library).run(None, feeds)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
