"""What keeps a model from running as one CUDA graph, by name and reason; and that dynamic exports are free of it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import models
from models.exported import RARE, Exported, exports
from onnxopt.graph import normalize, read
from onnxopt.graph.placement.cuda_graphs import blocking_nodes, host_nodes
from onnxopt.tools import inspect
from tests.support.graphs import graph, run

_SHAPE_OPERATORS = frozenset({"Shape", "Size", "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Expand", "Range"})


def _blocking(inputs: str, outputs: str, body: str, constants: str = "") -> list[tuple[str, str]]:
    return blocking_nodes(graph(inputs, outputs, body, constants=constants))


@pytest.mark.parametrize(
    ("inputs", "outputs", "body", "constants", "name", "reason"),
    [
        ("float[N] x, bool b", "float[] y",
         "y = If (b) <then_branch = t () => (float[] p) { p = Exp(x) }, "
         "else_branch = e () => (float[] q) { q = Abs(x) }>",
         "", "y", "If decides on the host"),
        ("float[N] x", "int64[] y", "y = NonZero(x)", "", "y", "depends on values"),
        ("float[N] x", "float[] y", "y = Acosh(x)", "", "y", "Acosh has no CUDA kernel"),
        ("float16[N, 2, H, W] x, float16[N, 3, 4, 2] g", "float16[] y", "y = GridSample(x, g)", "", "y",
         "GridSample of float16 (version 20) has no CUDA kernel: its data goes through the CPU"),
        ("uint8[N, 4] x", "uint8[] y", "y = Tile(x, r)", "int64[2] r = {1, 2}", "y", "Tile of uint8 (version 13)"),
        ("float[N, 4] x", "int64[] y", "y = ArgMax<select_last_index = 1>(x)", "", "y",
         "ArgMax with select_last_index has no CUDA kernel"),
        ("string[N] x", "string[] y", "y = Identity(x)", "", "y", "Identity reads or writes strings"),
        ("float[N] x", "float[] y", "s = Shape(x)  f = Cast<to=1>(s)  e = Exp(x)  y = Mul(e, f)", "", "y",
         "Mul runs on the device and reads `f`, which is computed on the host"),
        ("float[N, 4] x, int64[2] k", "float[] y", "a = Abs(k)  y = Reshape(x, a)", "", "y",
         "Reshape reads `a` on the host, but Abs computes it on the device"),
        ("float[N, 4] x, int64[2] k", "float[] y", "y = Reshape(x, k)", "", "y",
         "Reshape reads the input `k` on the host"),
        ("float[N] x, float v", "float[] y", "a = Exp(v)  y = Pad(x, p, a)", "int64[2] p = {1, 1}", "y",
         "Pad reads `a` on the host, but Exp computes it on the device"),
        ("float[N] x", "float[] y", "s = Shape(x)  f = Cast<to=1>(s)  y = Mul(x, f)", "", "y",
         "Mul reads the input `x` on the host"),
    ],
)  # fmt: skip
def test_what_blocks_has_a_name_and_a_reason(
    inputs: str, outputs: str, body: str, constants: str, name: str, reason: str
) -> None:
    found = _blocking(inputs, outputs, body, constants)
    assert [n for n, _ in found] == [name]
    assert reason in found[0][1]


@pytest.mark.parametrize(("opset", "reasons"), [(20, 0), (22, 1)])
def test_kernels_are_those_of_the_operators_version(opset: int, reasons: int) -> None:
    model = graph("float[N, 3, 8, 8] x", "float[] y", "y = MaxPool<kernel_shape = [2, 2]>(x)", opset=opset)
    assert [reason for _, reason in blocking_nodes(model)] == [
        "MaxPool of float32 (version 22) has no CUDA kernel: its data goes through the CPU"
    ][:reasons]


@pytest.mark.parametrize(
    ("inputs", "body", "constants"),
    [
        ("float[N, 4] x", "y = Exp(x)", ""),
        ("float[N, 2, H, W] x, float[N, 3, 4, 2] g", "y = GridSample(x, g)", ""),
        ("float[N, 4] x", "y = LpNormalization(x)", ""),
        ("float[N, 4] x", "s = Shape(x)  g = Slice(s, z, o)  c = Concat<axis=0>(g, t, t)  y = Reshape(x, c)",
         "int64[1] z = {0}, int64[1] o = {1}, int64[1] t = {2}"),
        ("float[N, 4] x", "s = Size(x)  r = Range(z, s, o)  y = Cast<to=1>(r)", "int64 z = {0}, int64 o = {1}"),
    ],
)  # fmt: skip
def test_shapes_on_the_host_block_nothing(inputs: str, body: str, constants: str) -> None:
    assert _blocking(inputs, "float[] y", body, constants) == []


def test_nodes_on_the_host_are_listed_although_they_block_nothing() -> None:
    model = graph(
        "float[N, 4] x", "float[] y", "s = Shape(x)  c = Add(s, s)  y = Expand(x, c)",
    )  # fmt: skip
    assert host_nodes(model) == [("c", "Add computes a shape")]


def test_sixteen_bit_floats_never_stay_on_the_host() -> None:
    body = "s = Shape(x)  f = Cast<to=10>(s)  g = Mul(f, f)  y = Mul(x, g)"
    found = _blocking("float16[N] x", "float16[] y", body)
    assert [name for name, _ in found] == ["g"]


def _positions() -> ir.Model:
    """A model that multiplies by the cosine of its second dim."""
    constants = "float[2] freq = {1.0, 0.5}, int64[1] a = {1}"
    return graph(
        "float[B, P, 2] x", "float[] y",
        "p = Shape<start=1, end=2>(x)  u = Unsqueeze(p, a)  f = Cast<to=1>(u)  m = Mul(f, freq)  c = Cos(m) "
        "y = Mul(x, c)",
        constants=constants,
    )  # fmt: skip


def test_positions_are_counted_on_the_device() -> None:
    model = _positions()
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 5, 2), np.float32)}
    before = run(model, feeds)
    assert blocking_nodes(model)
    normalized = normalize.normalize(model).model
    assert blocking_nodes(normalized) == []
    (counting,) = (node for node in normalized.graph if node.op_type == "Range")
    # Gather copies what Shape computed. ONNX Runtime on CUDA gives the memory of what shares it away too early.
    start = counting.inputs[0].producer()  # type: ignore[union-attr]
    assert start is not None and start.op_type == "Gather"
    np.testing.assert_array_equal(run(normalized, feeds)[0], before[0])


@pytest.mark.gpu
def test_positions_that_are_counted_on_the_device_are_right_there() -> None:
    proto = ir.to_proto(normalize.normalize(_positions()).model)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CUDAExecutionProvider"])
    assert session.get_providers()[0] == "CUDAExecutionProvider"
    for size in (1, 5, 64):
        x = np.random.default_rng(size).standard_normal((2, size, 2), np.float32)
        expected = x * np.cos(size * np.array([1.0, 0.5]))
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=1e-4)


# architecture -> at most how many operators on shapes are left of a small dynamic export
LEFT = {"bert": 13, "vit": 2, "llama": 36, "convnext": 0, "efficientnet": 0, "whisper_encoder": 0, "llama_decode": 19}
DYNAMIC = [
    pytest.param(row, id=row.name, marks=pytest.mark.exhaustive if row.name in RARE else ())
    for row in exports().values()
    if row.size == "tiny" and row.dynamic
]


@pytest.mark.models
@pytest.mark.parametrize("row", DYNAMIC)
def test_shape_subgraphs_of_a_dynamic_export_disappear_and_a_cuda_graph_can_be_captured(row: Exported) -> None:
    model = read.load(models.path(row.name)).model
    before = sum(node.op_type in _SHAPE_OPERATORS for node in model.graph)
    normalized = normalize.normalize(model).model
    after = sum(
        node.op_type in _SHAPE_OPERATORS and node.outputs[0].dtype in (ir.DataType.INT64, ir.DataType.BOOL)
        for node in normalized.graph
    )
    assert after <= LEFT[row.architecture] <= 0.6 * before
    assert blocking_nodes(normalized) == []
    assert all("computes a shape" in reason for _, reason in host_nodes(normalized))


@pytest.mark.models
def test_inspect_names_what_is_on_the_host() -> None:
    summary = inspect.inspect(models.path("llama_decode_tiny_dyn"))
    assert any("computed on the host" in reason for _, reason in summary.cuda_graph)
    assert summary.host


def test_what_ort_folds_blocks_nothing() -> None:
    """Constant nodes, and nodes that compute from constants alone, are gone once a session is created."""
    body = """
      c = Constant<value = int64[2] {0, -1}>()
      n = Neg(c)
      a = Abs(n)
      s = Reshape(x, c)
      t = Reshape(x, a)
      u, i = Unique(k)
      f = Cast<to=1>(u)
      p = Mul(s, f)
      y = Add(p, t)
    """
    assert _blocking("float[N, 1] x", "float[] y", body, "int64[2] k = {1, 1}") == []
    found = _blocking("float[N, 1] x, int64[2] k", "float[] y", body)
    assert [name for name, _ in found] == ["u", "p"]  # p reads what u computes on the host


def test_random_numbers_are_not_folded() -> None:
    body = "r = RandomNormal<shape=[4]>()  m = Multinomial(r)  f = Cast<to=1>(m)  y = Mul(x, f)"
    assert [name for name, _ in _blocking("float[N] x", "float[] y", body)]
