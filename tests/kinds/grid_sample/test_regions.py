"""Regions of samples: what is found, what stays, the entry points, and that no result changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from cases.deformable_attention import Deformable
from cases.grid_sample import FAR, Case, sampled
from cases.models import fuse, outline
from onnxopt.codegen.generate import generate
from onnxopt.fusion.region import FusionPlan, Region
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.shapes.infer import infer
from onnxopt.kinds.grid_sample.kind import GRID_SAMPLE
from onnxopt.program.grid_sample import GridSample, GridSampleLevel, GridSampleSteps
from tests.support.graphs import graph, run

_MAPS = ((5, 4), (3, 2))


def _region(model: ir.Model) -> tuple[FusionPlan, Region, GridSample]:
    plan = fuse(model)
    (region,) = [r for r in plan.regions if r.kind is GRID_SAMPLE]
    assert isinstance(region.meaning, GridSample)
    region.meaning.verify()
    return plan, region, region.meaning


def _of_case(case: Case | Deformable) -> tuple[FusionPlan, Region, GridSample]:
    return _region(ir.from_proto(case.model()))


@pytest.mark.parametrize(
    ("inputs", "attributes", "fields"),
    [
        ("float[N, C, H, W] x, float[N, P, Q, 2] g", "align_corners = 0", {"mode": "linear", "padding": "zeros"}),
        ("float16[N, C, H, W] x, float16[N, P, Q, 2] g", 'mode = "nearest", align_corners = 1',
         {"mode": "nearest", "align_corners": True}),
        ("bfloat16[N, C, H, W] x, float[N, P, Q, 2] g", 'mode = "cubic", padding_mode = "border"',
         {"mode": "cubic", "padding": "border"}),
        ("float[N, C, D, H, W] x, float[N, O, P, Q, 3] g", 'padding_mode = "reflection"',
         {"dims": 3, "padding": "reflection"}),
    ],
)  # fmt: skip
def test_what_is_found(inputs: str, attributes: str, fields: dict[str, object]) -> None:
    _, region, meaning = _region(
        graph(inputs, f"{inputs.split('[')[0]}[] y", f"y = GridSample <{attributes}> (x, g)", opset=22)
    )
    assert {name: getattr(meaning, name) for name in fields} == fields
    assert [v.name for v in region.inputs] == ["x", "g"]
    assert meaning.view is None and not meaning.summed
    assert not GRID_SAMPLE.pays_on_cpu(region)


def test_modes_of_opset_16() -> None:
    body = 'y = GridSample <mode = "bicubic"> (x, g)'
    _, _, meaning = _region(graph("float[1, 2, 3, 4] x, float[1, 5, 6, 2] g", "float[] y", body, opset=16))
    assert meaning.mode == "cubic"


@pytest.mark.parametrize(
    ("inputs", "attributes", "reason"),
    [
        ("double[N, C, H, W] x, double[N, P, Q, 2] g", "align_corners = 0", "No kernel runs GridSample of float64"),
        ("float[N, C, H, W] x, double[N, P, Q, 2] g", "align_corners = 0", "No kernel runs GridSample of float64"),
        ("float[] x, float[] g", "align_corners = 0", "GridSample samples from no known number of two or three dims"),
        ("float[N, C, D, H, W] x, float[N, O, P, Q, 3] g", 'mode = "cubic"',
         "No kernel runs GridSample with mode cubic of 3 dims"),
    ],
)  # fmt: skip
def test_what_is_refused(inputs: str, attributes: str, reason: str) -> None:
    body = f"y = GridSample <{attributes}> (x, g)"
    plan = fuse(graph(inputs, f"{inputs.split('[')[0]}[] y", body, opset=22))
    assert not [r for r in plan.regions if r.kind is GRID_SAMPLE]
    assert [r.reason for r in plan.refusals if r.node == "y"] == [reason]


def test_deformable_attention_is_one_launch() -> None:
    plan, region, meaning = _of_case(Deformable(_MAPS, dtype="float16", cast=True, before=True))
    assert len(plan.regions) == 1
    assert [v.name for v in region.inputs] == ["value", "attention", "loc"]
    view = meaning.view
    assert view is not None and (view.heads, view.channels, view.size) == (3, 8, (7, 8))
    assert (view.batch, view.head, view.channel, view.pixel) == (26 * 24, 8, 1, 24)
    assert view.levels == (GridSampleLevel(0, 0, 1, 5, 4, 4), GridSampleLevel(20 * 24, 8, 1, 3, 2, 4))
    assert view.grid == GridSampleSteps(7 * 3 * 2 * 8, 2 * 8, 3 * 2 * 8, 2)
    assert view.weights == GridSampleSteps(7 * 3 * 8, 8, 3 * 8, 1)
    assert meaning.summed and not meaning.result_planes and meaning.prologue is not None


@pytest.mark.parametrize("form", ["stack", "concat"])
@pytest.mark.parametrize("is_open", [True, False])
def test_deformable_attention_is_found_however_it_is_written(form: str, is_open: bool) -> None:
    plan, region, meaning = _of_case(Deformable(_MAPS, form=form, open=is_open))
    assert len(plan.regions) == 1 and meaning.view is not None and len(meaning.view.levels) == 2
    assert {"GridSample", "ReduceSum", "Transpose"} < {n.op_type for n in region.nodes}


def test_a_product_of_the_result_leaves_its_transpose() -> None:
    """GEMM kernels take Transposes of their operands, but not those of other kernels."""
    case = Deformable(_MAPS)
    inputs = ", ".join(f"float{list(shape)} {name}" for name, shape in case.inputs().items())
    body = " ".join(case.body()).replace(" y = ", " t = ") + " m = MatMul (t, w) a = Add (m, b) y = Relu (a)"
    numbers = f"float[24, 4] w = {{{', '.join(['1.5'] * 96)}}}, float[4] b = {{1.0, 2.0, 3.0, 4.0}}"
    model = graph(inputs, "float[] y", body, constants=f"{case.constants()}, {numbers}", opset=22)
    plan = fuse(model)
    assert [r.kind.name for r in plan.regions] == ["grid_sample", "gemm"]
    (of_product,) = [r for r in plan.regions if r.kind.name == "gemm"]
    assert "Transpose" not in [n.op_type for n in of_product.nodes]


def test_levels_whose_samples_others_read_are_kernels_each() -> None:
    model = ir.from_proto(Deformable(_MAPS).model())
    sample = next(n.outputs[0] for n in model.graph if n.op_type == "GridSample")
    model.graph.outputs.append(sample)
    plan = fuse(model)
    found = [r for r in plan.regions if r.kind is GRID_SAMPLE]
    assert len(found) == 2 and all(isinstance(r.meaning, GridSample) and not r.meaning.summed for r in found)


def test_views_that_others_read_stay() -> None:
    """The kernel then reads what they compute."""
    case = Case((2, 8, 5, 4), (3, 6), form="data last", open=False)
    model = ir.from_proto(case.model())
    _, region, meaning = _region(model.clone())
    assert [v.name for v in region.inputs] == ["x", "g"] and meaning.reads_vectors
    model.graph.outputs.append(next(n.outputs[0] for n in model.graph if n.op_type == "Transpose"))
    _, region, meaning = _region(model)
    assert [v.name for v in region.inputs] == ["t", "g"] and not meaning.reads_vectors


@pytest.mark.parametrize("node", ["Transpose (g)", "Transpose <perm = [3, 1, 2, 0]> (g)", "Cast <to = 1> (g)"])
def test_what_turns_a_grid_stays(node: str) -> None:
    """Where sizes are unknown; a Cast turns nothing."""
    dtype, x = ("float16", "float16") if "Cast" in node else ("float", "float")
    body = f"t = {node} y = GridSample (x, t)"
    _, region, _ = _region(graph(f"{x}[N, C, H, W] x, {dtype}[N, P, Q, 2] g", f"{x}[] y", body))
    assert [n.op_type for n in region.nodes] == (["Cast", "GridSample"] if "Cast" in node else ["GridSample"])


@pytest.mark.parametrize("op", ["Cast <to = 6> (z)", "Cast <to = 11> (z)"])
def test_casts_that_are_no_rounding_stay(op: str) -> None:
    body = f"z = GridSample (x, g) i = {op} s = ReduceSum <keepdims = 0> (i, last) y = Cast <to = 1> (s)"
    _, region, _ = _region(
        graph("float[2, 3, 4, 5] x, float[2, 6, 7, 2] g", "float[] y", body, constants="int64[1] last = {-1}")
    )
    assert [n.op_type for n in region.nodes] == ["GridSample"]


@pytest.mark.parametrize(
    "body",
    [
        "z = GridSample (x, g) m = Mul (z, q) y = ReduceSum <keepdims = 0> (m, last)",  # a weight a channel
        "z = GridSample (x, g) y = ReduceSum <keepdims = 0> (z, both)",
        "z = GridSample (x, g) y = ReduceSum <keepdims = 0> (z, third)",
    ],
)
def test_other_sums_stay(body: str) -> None:
    constants = "int64[1] last = {-1}, int64[2] both = {2, 3}, int64[1] third = {2}"
    inputs = "float[2, 3, 4, 5] x, float[2, 6, 7, 2] g, float[2, 3, 6, 7] q"
    _, region, meaning = _region(graph(inputs, "float[] y", body, constants=constants))
    assert not meaning.summed and "ReduceSum" not in [n.op_type for n in region.nodes]


def test_the_nearest_pixel_is_that_of_rounded_coordinates() -> None:
    """A prologue of 16 bits, whose results the graph rounds, is no part of the kernel."""
    for mode, count in (("linear", 1), ("nearest", 2)):
        plan = fuse(ir.from_proto(Case((2, 4, 5, 6), (3, 2), mode, dtype="float16", before="scale").model()))
        assert len(plan.regions) == count


def test_operands_of_a_prologue_are_read_by_coordinate() -> None:
    """Not where the coordinates are part of longer rows."""
    body = "a = Add (g, b) r = Reshape (a, s) y = GridSample (x, r)"
    model = graph("float[2, 3, 4, 5] x, float[2, 6, 14] g, float[14] b", "float[] y", body,
                  constants="int64[4] s = {2, 6, 7, 2}")  # fmt: skip
    _, region, meaning = _region(model)
    assert meaning.prologue is None and "a" in [v.name for v in region.inputs]


def test_casts_of_the_rewrite_rules_are_part_of_the_kernel(tmp_path: Path) -> None:
    """Without the library, the function's body runs on the GPU in float32."""
    body = "h = Mul (g, two) z = GridSample (x, h) y = Relu (z)"
    constants = "float16 two = {16384}"
    model = graph("float16[N, 4, H, W] x, float16[N, P, Q, 2] g", "float16[] y", body, constants=constants)
    infer(model).write()
    rewrite(model, tmp_path)
    plan, region, meaning = _region(model)
    assert len(plan.regions) == 1 and [v.name for v in region.inputs] == ["x", "g"]
    assert meaning.inputs == ("float16", "float16") and meaning.outputs == ("float16",)
    (sample,) = (n for n in region.nodes if n.op_type == "GridSample")
    assert [v.dtype for v in sample.inputs if v is not None] == [ir.DataType.FLOAT] * 2


@pytest.mark.parametrize(
    ("case", "widths"),
    [
        (Case((2, 16, 5, 4), (3, 6)), [4, 1]),
        (Case((2, 3, 5, 4), (3, 6), open=False), [4, 1]),
        (Case((2, 2, 5, 4), (3, 6), open=False), [2, 1]),
        (Case((2, 1, 5, 4), (3, 6), open=False), [1]),
        (Case((2, 16, 5, 4), (3, 6), dtype="float16", form="last", open=False), [8, 1]),
        (Case((2, 12, 5, 4), (3, 6), dtype="float16", form="last", open=False), [4, 1]),
        (Case((2, 16, 5, 4), (3, 6), dtype="float16", form="widened", open=False), [4, 1]),
        (Deformable(_MAPS, dtype="float16", channels=32), [8, 1]),
        (Deformable(_MAPS, channels=6), [2, 1]),
    ],
)
def test_entry_points(case: Case | Deformable, widths: list[int]) -> None:
    model = ir.from_proto(case.model())
    (kernel,) = outline(model, fuse(model))
    generate([kernel])
    assert [v.vector for v in kernel.variants] == widths


@pytest.mark.parametrize("case", [Case((2, 4, 5, 6), (3, 2), before="scale", after="affine"), Deformable(_MAPS)])
def test_results_do_not_change_without_the_library(case: Case | Deformable) -> None:
    model, feeds = ir.from_proto(case.model()), case.feeds()
    expected = run(model, feeds)[0]
    outline(model, fuse(model))
    assert not any(n.op_type == "GridSample" for n in model.graph)
    np.testing.assert_array_equal(run(model, feeds)[0], expected)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
def test_what_cases_expect_is_what_the_cpu_provider_gives(mode: str, padding: str, align: bool) -> None:
    cases = [Case((2, 3, 6, 5), (7, 9), mode, padding, align, spread=4.0)]
    cases += [Case((2, 3, 4, 6, 5), (3, 2, 9), mode, padding, align)] * (mode != "cubic")
    far = dataclasses.replace(cases[0], data=(1, 2, 3, 4), size=(3, 3))
    for case in (*cases, dataclasses.replace(cases[0], data=(1, 2, 1, 5)), far):
        feeds = case.feeds()
        for name, index, value in FAR if case is far else ():
            feeds[name][index] = value
        with np.errstate(over="ignore"):
            right = sampled(feeds["x"].astype(np.float64), feeds["g"].astype(np.float64), mode, padding, align)
        found = run(ir.from_proto(onnx.ModelProto.FromString(case.model().SerializeToString())), feeds)[0]
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
