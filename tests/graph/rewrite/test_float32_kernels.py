"""Operators that ONNX Runtime has a CUDA kernel for in float32, and none in 16 bits, compute in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

import onnxopt
from cases.models import fuse
from onnxopt.graph.normalize import normalize
from onnxopt.graph.passes.contrib.restore import restore_attention
from onnxopt.graph.placement import provider_kernels
from onnxopt.graph.placement.cuda_graphs import blocking_nodes, host_nodes
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.table import FLOAT32_KERNELS
from onnxopt.graph.shapes.infer import infer
from onnxopt.program.grid_sample import GridSample
from onnxopt.program.pointwise import Program
from onnxopt.tools.inspect import inspect
from tests.support.graphs import graph, run, spelled

_NARROW = {"float16": onnx.TensorProto.FLOAT16}  # the CPU provider has no kernels of bfloat16 to compare with
_SAMPLE = "float16[N, 2, H, W] x, float16[N, 3, 4, 2] g"
_CASTS = ["Cast", "Cast", "GridSample", "Cast"]


def _cases() -> Iterator[tuple[str, int, int]]:
    """(operator, version, dtype) of each that has a kernel in float32 and none in this dtype."""
    for operator, versions in provider_kernels._table().items():
        for version, variables in versions.items():
            for missing in variables.values():
                if "float" not in missing:
                    yield from ((operator, int(version), dtype) for name, dtype in _NARROW.items() if name in missing)


def _of(case: onnx.ModelProto, version: int, dtype: int) -> onnx.ModelProto:
    """A test case of ONNX at another opset, with floats of another dtype."""
    copy = onnx.ModelProto()
    copy.CopyFrom(case)
    copy.ir_version = 10
    copy.opset_import[0].version = version
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = dtype
    return copy


def _rewritten(model: ir.Model, folder: Path) -> int:
    infer(model).write()
    return rewrite(model, folder).applied[FLOAT32_KERNELS]


def _ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # ONNX makes its test cases of all operators
@pytest.mark.parametrize(("operator", "version", "dtype"), [pytest.param(*c, id=f"{c[0]}-{c[1]}") for c in _cases()])
def test_every_operator_of_the_table(operator: str, version: int, dtype: int, tmp_path: Path) -> None:
    """Against onnx's evaluator in float32, over operands that were rounded."""
    # What an earlier call collected, of other operators, comes back too.
    cases = [case for case in collect_testcases(operator) if case.model is not None]
    cases = [case for case in cases if [node.op_type for node in case.model.graph.node] == [operator]]
    assert cases
    rewritten = 0
    for case in cases:
        if not {i.type.tensor_type.elem_type for i in case.model.graph.input} <= {onnx.TensorProto.FLOAT}:
            continue
        narrow = onnx.helper.tensor_dtype_to_np_dtype(dtype)
        drawn = (np.asarray(array).astype(narrow) for array in case.data_sets[0][0])
        feeds = {i.name: array for i, array in zip(case.model.graph.input, drawn, strict=True)}
        model = ir.from_proto(_of(case.model, version, dtype))
        assert host_nodes(model)
        assert _rewritten(model, tmp_path) == 1, case.name
        assert not host_nodes(model) and not blocking_nodes(model)
        reference = ReferenceEvaluator(_of(case.model, version, onnx.TensorProto.FLOAT))
        expected = reference.run(None, {name: array.astype(np.float32) for name, array in feeds.items()})
        for result, wanted in zip(run(model, feeds), expected, strict=True):
            assert result.dtype == narrow
            np.testing.assert_allclose(result.astype("f4"), wanted, rtol=1e-3, atol=1e-3, err_msg=case.name)
        rewritten += 1
    assert rewritten


def test_results_are_those_of_the_cpu_provider(tmp_path: Path) -> None:
    """To the bit: it puts the same Casts around the node."""
    source = graph(_SAMPLE, "float16[] y", 'y = GridSample<padding_mode = "reflection">(x, g)')
    found = source.clone()
    assert _rewritten(found, tmp_path) == 1
    assert _ops(found) == _CASTS
    for size, batch in ((0, 2), (1, 1), (7, 3)):
        drawn = np.random.default_rng(size)
        feeds = {"x": drawn.standard_normal((batch, 2, 5, 3 + size)), "g": drawn.uniform(-3, 3, (batch, 3, 4, 2))}
        if not size:
            feeds["x"][0, 0] = np.nan
        halves = {name: array.astype(np.float16) for name, array in feeds.items()}
        np.testing.assert_array_equal(run(found, halves)[0], run(source, halves)[0])


def test_operands_are_cast_once(tmp_path: Path) -> None:
    found = graph(
        f"{_SAMPLE}, float16[N, 1, 1, 2] h", "float16[] y, float16[] z", "y = GridSample(x, g) z = GridSample(x, h)"
    )
    assert _rewritten(found, tmp_path) == 2
    assert _ops(found).count("Cast") == 5
    assert [value.name for value in found.graph.outputs] == ["y", "z"]


@pytest.mark.parametrize("mode", ["", '<mode = "nearest">'])
def test_between_two_of_them_the_result_is_rounded(mode: str, tmp_path: Path) -> None:
    """As the graph says; ONNX Runtime's CPU provider takes the Casts between two such nodes out."""
    found = graph(_SAMPLE, "float16[] y", f"a = GridSample{mode}(x, g) y = GridSample{mode}(a, g)")
    assert _rewritten(found, tmp_path) == 2
    assert _ops(found) == [*_CASTS, "Cast", "GridSample", "Cast"]
    assert not host_nodes(found)
    one, drawn = graph(_SAMPLE, "float16[] y", f"y = GridSample{mode}(x, g)"), np.random.default_rng(0)
    x, g = drawn.standard_normal((1, 2, 4, 4)).astype("f2"), drawn.uniform(-1, 1, (1, 3, 4, 2)).astype("f2")
    expected = run(one, {"x": run(one, {"x": x, "g": g})[0], "g": g})[0]
    np.testing.assert_array_equal(run(found, {"x": x, "g": g})[0], expected)


def test_a_cast_that_rounds_nothing_is_left_out(tmp_path: Path) -> None:
    inputs = _SAMPLE.replace("float16[N, 2", "bool[N, 2")
    found = graph(inputs, "float16[] y", "h = Cast<to = 10>(x) y = GridSample(h, g)")
    assert _rewritten(found, tmp_path) == 1
    (sample,) = (node for node in found.graph if node.op_type == "GridSample")
    cast = sample.inputs[0].producer()  # type: ignore[union-attr]
    assert cast is not None and cast.inputs[0] is found.graph.inputs[0]


@pytest.mark.parametrize(
    ("inputs", "body", "opset"),
    [
        (_SAMPLE.replace("float16", "float"), "y = GridSample(x, g)", 20),
        (_SAMPLE, "a = Acosh(x) y = GridSample(a, g)", 20),
        ("float16[N, 4] x", "y = Acosh(x)", 20),
        ("float16[N, 4, 8] x", "y = MaxPool<kernel_shape = [2]>(x)", 22),
        ("float16[N, 4] x", "i = ArgMax<select_last_index = 1>(x) y = Cast<to = 10>(i)", 20),
        (_SAMPLE, "y = GridSample(x, g)", 16),
    ],
    ids=[
        "float32", "an operand on the host", "no kernel in any dtype", "none in this version", "none of the attribute",
        "a version that is not in the table",
    ],
)  # fmt: skip
def test_nodes_that_stay(inputs: str, body: str, opset: int, tmp_path: Path) -> None:
    found = graph(inputs, f"{inputs.split('[')[0]}[] y", body, opset=opset)
    before = _ops(found)
    assert _rewritten(found, tmp_path) == 0
    assert _ops(found) == before


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("archs", [("sm_90",), ()])
def test_what_the_commands_say(archs: tuple[str, ...], tmp_path: Path, artifact: Path) -> None:
    """The original is blocked, and so is an artifact for CPUs, whose node ONNX Runtime computes in float32 anyway."""
    ir.save(graph(_SAMPLE, "float16[] y", "y = GridSample(x, g)"), tmp_path / "m.onnx")
    reason = "GridSample of float16 (version 20) has no CUDA kernel: its data goes through the CPU"
    assert inspect(tmp_path / "m.onnx").cuda_graph == (("y", reason),)
    manifest = onnxopt.optimize(tmp_path / "m.onnx", artifact, archs=archs).manifest
    assert manifest.verify.status == "passed"
    assert len(inspect(artifact / "model.onnx").cuda_graph) == (0 if archs else 1)
    assert ("1 x operator without a CUDA kernel in 16 bits" in onnxopt.explain(artifact)) == bool(archs)


def test_kernels_round_where_the_nearest_element_is_taken(tmp_path: Path) -> None:
    """A kernel ahead of GridSample's, which computes other coordinates itself."""
    found = graph(_SAMPLE, "float16[] y", 'h = Tanh(g) y = GridSample<mode = "nearest">(x, h)')
    assert _rewritten(found, tmp_path) == 1
    (region,) = (region for region in fuse(found).regions if region.nodes[0].op_type == "Tanh")
    assert isinstance(region.meaning, Program)
    assert (region.meaning.outputs, spelled(region.meaning)) == (("float16",), ["narrow<float16>(tanh(x0))"])
    found = graph(_SAMPLE, "float16[] y", "h = Tanh(g) y = GridSample(x, h)")
    assert _rewritten(found, tmp_path) == 1
    (region,) = fuse(found).regions
    assert isinstance(region.meaning, GridSample) and region.meaning.prologue is not None
    assert spelled(region.meaning.prologue.program) == ["tanh(x0)"]


def test_readers_that_round_and_others_share_no_cast(tmp_path: Path) -> None:
    body = 'h = Tanh(g) y = GridSample(x, h) z = GridSample<mode = "nearest">(x, h)'
    found = graph(_SAMPLE, "float16[] y, float16[] z", body)
    assert _rewritten(found, tmp_path) == 2
    linear, nearest = (node for node in found.graph if node.op_type == "GridSample")
    assert linear.inputs[1] is not nearest.inputs[1]


def test_casts_go_before_views_that_one_node_reads(tmp_path: Path) -> None:
    """There a kernel that computes their operand contains them, also where the sizes of the view are unknown."""
    body = "t = Transpose(x) r = Reshape(t, s) u = Unsqueeze(r, a) y = GridSample(u, g)"
    source = graph(
        "float16[H, C] x, int64[3] s, float16[1, 3, 4, 2] g", "float16[] y", body, constants="int64[1] a = {0}"
    )
    found = source.clone()
    assert _rewritten(found, tmp_path) == 1
    assert _ops(found) == ["Cast", "Transpose", "Cast", "Reshape", "Unsqueeze", "GridSample", "Cast"]
    drawn = np.random.default_rng(0)
    feeds = {"x": drawn.standard_normal((6, 4)), "g": drawn.uniform(-1, 1, (1, 3, 4, 2))}
    halves = {name: array.astype(np.float16) for name, array in feeds.items()} | {"s": np.array([2, 4, 3])}
    np.testing.assert_array_equal(run(found, halves)[0], run(source, halves)[0])


def test_a_view_that_others_read_stays_in_16_bits(tmp_path: Path) -> None:
    found = graph(
        _SAMPLE,
        "float16[] y, float16[] r",
        "r = Reshape(x, s) y = GridSample(r, g)",
        constants="int64[4] s = {0, 1, 2, -1}",
    )
    assert _rewritten(found, tmp_path) == 1
    assert [value.dtype for value in found.graph.outputs] == [ir.DataType.FLOAT16] * 2
    assert _ops(found) == ["Cast", "Reshape", "Cast", "GridSample", "Cast"]


def test_an_operator_that_is_put_back_computes_in_16_bits(tmp_path: Path) -> None:
    inputs = "float16[2, 16, 64] q, float16[2, 16, 64] k, float16[2, 16, 64] v, float16[2, 3, 4, 2] g"
    body = "a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v) x = Unsqueeze(a, i) y = GridSample(x, g)"
    found = normalize(graph(inputs, "float16[] y", body, constants="int64[1] i = {1}")).model
    done = rewrite(found, tmp_path, leave_out={"attention", "attention_forms", "heads"})
    assert done.applied[FLOAT32_KERNELS] == 1
    restore_attention(found, recognises=False)
    (attention,) = (node for node in found.graph if node.op_type == "MultiHeadAttention")
    assert [value.dtype for value in (*attention.inputs[:3], *attention.outputs)] == [ir.DataType.FLOAT16] * 4  # type: ignore[union-attr]


def test_kernels_read_parts_of_a_split_where_they_are(tmp_path: Path) -> None:
    """As the levels of deformable attention."""
    body = "a, b = Split<axis = 2>(x, n) r = Reshape(a, s) y = GridSample(r, g) t = Reshape(b, q) z = GridSample(t, g)"
    constants = "int64[2] n = {16, 4}, int64[4] s = {0, 2, 4, 4}, int64[4] q = {0, 2, 2, 2}"
    inputs = "float16[N, 2, 20] x, float16[N, 3, 4, 2] g"
    found = graph(inputs, "float16[] y, float16[] z", body, constants=constants)
    assert _rewritten(found, tmp_path) == 2
    assert [{node.op_type for node in region.nodes} for region in fuse(found).regions] == [
        {"Slice", "Cast", "Reshape", "GridSample"}
    ] * 2
