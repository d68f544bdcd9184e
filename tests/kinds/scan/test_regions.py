"""Which CumSums become scan regions, with what around them, and what kernels.json may say of them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from cases.models import fuse, outline
from onnxopt.codegen import generate, kernels_json, nvrtc, sealed_json
from onnxopt.fusion.region import FusionPlan, Kernel
from onnxopt.program.scan import SUMMED, ScanProgram
from tests.support import graphs
from tests.support.custom_ops.custom_ops_artifact import copy_library
from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.kinds import rowwise_models, scan_models

_AXIS = "int64 axis = {1}, int64 one = {1}, float most = {0.9}, float none = {0}"


def _plan(inputs: str, outputs: str, body: str, constants: str = _AXIS) -> FusionPlan:
    return fuse(graphs.graph(inputs, outputs, body, constants=constants))


def _regions(plan: FusionPlan) -> list[tuple[str, str]]:
    return [(r.kind.name, " ".join(n.op_type for n in r.nodes)) for r in plan.regions]


def test_takes_in_what_is_elementwise_around_it() -> None:
    plan = _plan(
        "int64[8,512] x", "int64[8,512] y, bool[8,512] k",
        "e = Equal(x, one) k = Not(e) m = Cast<to = 7>(k) c = CumSum(m, axis) p = Mul(c, m) y = Add(p, one)",
    )  # fmt: skip
    assert _regions(plan) == [("scan", "Equal Not Cast CumSum Mul Add")]
    assert [v.name for v in plan.regions[0].outputs] == ["k", "y"]


def test_broadcast_operands_are_inputs() -> None:
    plan = _plan(
        "float[N,M] x, float[M] g, float[N,1] q", "float[N,M] y", "a = Mul(x, g) c = CumSum(a, axis) y = Div(c, q)"
    )
    (region,) = plan.regions
    assert [v.name for v in region.inputs] == ["x", "g", "q"]


def test_follows_a_softmax() -> None:
    """Nucleus sampling: what lies between belongs to the rows, what reads both to the scan."""
    plan = _plan(
        "float[4,1000] x", "float[4,1000] y",
        "p = Softmax(x) c = CumSum(p, axis) b = Sub(c, p) k = LessOrEqual(b, most) y = Where(k, p, none)",
    )  # fmt: skip
    assert _regions(plan) == [("rowwise", "Softmax"), ("scan", "CumSum Sub LessOrEqual Where")]


def test_two_scans_are_two_regions() -> None:
    plan = _plan("float[4,100] x", "float[4,100] y", "c = CumSum(x, axis) s = Sin(c) d = CumSum(s, axis) y = Add(d, c)")
    assert _regions(plan) == [("scan", "CumSum Sin"), ("scan", "CumSum Add")]


def test_another_shape_stays_outside() -> None:
    """What is broadcast to the summed tensor is not computed again for each of its elements."""
    plan = _plan(
        "float[1,100] x, float[4,100] z", "float[4,100] y", "a = Exp(x) b = Neg(a) s = Add(b, z) y = CumSum(s, axis)"
    )
    assert ("scan", "Add CumSum") in _regions(plan)


@pytest.mark.parametrize(
    ("inputs", "body", "constants", "reason"),
    [
        ("float[4,100] x, int64[1] axis", "y = CumSum(x, axis)", "", "CumSum's axis `axis` is computed at run time"),
        ("float[4,100] x, int64 k", "j = Neg(k) y = CumSum(x, j)", "", "CumSum's axis `j` is computed at run time"),
        ("float x", "y = CumSum(x, axis)", _AXIS, "The rank of `x` is unknown"),
        ("float[4,1] x", "y = CumSum(x, axis)", _AXIS, "`x` has 4 elements, too few"),
        ("float[400,1] x", "y = CumSum(x, axis)", _AXIS, "CumSum works along a dim of size 1"),
        ("float[4,100] x", "y = CumSum(x, axis)", "int64 axis = {2}", "axis 2 does not exist in a tensor of rank 2"),
    ],
)
def test_others_stay(inputs: str, body: str, constants: str, reason: str) -> None:
    plan = _plan(inputs, "float[] y", body, constants)
    assert not plan.regions
    assert any(reason in r.reason for r in plan.refusals if r.op_type == "CumSum"), [r.reason for r in plan.refusals]


def test_shape_arithmetic_stays_on_the_host() -> None:
    plan = _plan(
        "float[N,M] x, float[K] z", "float[] y", "s = Shape(x) c = CumSum(s, none) y = Reshape(z, c)",
        "int64 none = {0}",
    )  # fmt: skip
    (reason,) = [r.reason for r in plan.refusals if r.op_type == "CumSum"]
    assert reason.startswith("CumSum computes a shape or an index; ONNX Runtime runs such nodes on the CPU")


def _kernel(inputs: str, body: str, constants: str = _AXIS, outputs: str = "") -> Kernel:
    model = graphs.graph(inputs, outputs or f"{inputs.split(']')[0]}] y", body, constants=constants)
    (kernel,) = outline(model, fuse(model))
    return kernel


def test_entry_points_go_by_what_is_known_of_the_rows() -> None:
    short = _kernel("float[4,100] x", "y = CumSum(x, axis)")
    assert [v.layout for v in short.variants] == ["held", "looped", "looped"]
    assert (short.variants[0].lanes, short.variants[0].unroll) == (16, 2)
    odd = _kernel("float16[4,4099] x", "y = CumSum(x, axis)")
    assert [v.layout for v in odd.variants] == ["ragged", "looped", "looped"]
    strided = _kernel("float[4,100,6] x", "y = CumSum(x, axis)")
    assert {v.layout for v in strided.variants} == {"strided"}
    assert all(v.threads == 32 * v.lanes for v in strided.variants)  # 32 rows a block, as the host counts blocks
    anything = _kernel("float[A,B,C] x", "y = CumSum(x, axis)")
    assert {v.layout for v in anything.variants} == {"held", "ragged", "split", "looped", "strided"}
    assert {v.index for v in anything.variants} == {32, 64}


def test_alone_it_is_left_to_the_provider_on_the_cpu() -> None:
    assert not _kernel("float[4,100] x", "y = CumSum(x, axis)").cpu
    body = "a = Exp(x) c = CumSum(a, axis) y = Sin(c)"
    assert _kernel("float[4,100] x", body).cpu
    assert _kernel("float[4,100] x", body, "int64 axis = {-1}").cpu
    assert not _kernel("float[4,100,6] x", body).cpu  # across memory


def test_cuda_text_of_every_dtype_compiles(tmp_path) -> None:
    kernels = []
    for dtype in sorted(SUMMED):
        for dims in ((3, 40), (2, 40, 6)):
            (kernel,) = scan_models.scan(dims, 1, dtype, 1, 1).fused.kernels
            kernels.append(dataclasses.replace(kernel, variants=kernel.variants[:1]))
    assert nvrtc.compile_cuda(generate.generate(kernels), ["sm_75"], tmp_path)


def _program() -> ScanProgram:
    (kernel,) = scan_models.scan((3, 40), 1, "float16").fused.kernels
    assert isinstance(kernel.program, ScanProgram)
    return kernel.program


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"axis": 2}, "axis"), ({"rank": 0}, "axis"), ({"rows": (True, True, True)}, "rows"), ({"rows": ()}, "rows"),
        ({"inputs": ("float32",) * 3}, "element"), ({"outputs": ("float32",) * 2}, "output"),
    ],
)  # fmt: skip
def test_a_program_that_breaks_a_rule(changed: dict[str, Any], said: str) -> None:
    good = _program()
    good.verify()
    with pytest.raises(ValueError, match=f"^{said}"):
        dataclasses.replace(good, **changed).verify()


DAMAGE = {
    "axis beyond the rank": ("kernels.0.axis", 2, "kernels[0].axis is not an integer from 0 to 1"),
    "no rank": ("kernels.0.rank", 0, "kernels[0].rank is not an integer from 1"),
    "a flag that is none": ("kernels.0.reverse", 1, "kernels[0].reverse is not true or false"),
    "rows missing": ("kernels.0.rows", [], "kernels[0].rows are not as many as inputs"),
    "another element": ("kernels.0.element.inputs.0", "float32", "kernels[0].element is not one value"),
    "another output": ("kernels.0.outputs.0", "float32", "kernels[0].output is not what the outputs store"),
    "an instruction that is none": ("kernels.0.element.code.0.op", "frob", "which is no primitive"),
    "unknown layout": ("kernels.0.variants.0.layout", "spiral", "which is no layout"),
    "a launch whose other is missing": ("kernels.0.variants.0.layout", "split", "whose passes are not all there"),
}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_refused(name: str, tmp_path) -> None:
    field, value, said = DAMAGE[name]
    found = scan_models.scan((3, 40), 1, "float16").fused
    document = json.loads(kernels_json.to_json(found.kernels, None))
    set_field(field, value)(document)
    library = copy_library(tmp_path)
    (tmp_path / "kernels.json").write_text(sealed_json.seal(document))
    with pytest.raises(Exception, match=r"kernels\.json") as caught:
        rowwise_models.session(found.optimized, library)
    assert said in str(caught.value)
