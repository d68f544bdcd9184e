"""Gates on the weights of 1x1 convolutions: where they go there, where not, and that no result changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxopt.artifact.manifest import Kernel
from onnxopt.graph import rewrite
from onnxopt.graph.rewrite.table import GATED_WEIGHTS
from onnxopt.pipeline import flow
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.graph.layout.test_layout import model, same
from tests.support.graphs import run

INPUT = "float[N, 8, 6, 6] x"
MAP = "a = Conv<pads=[1,1,1,1]>(x, w) "
MEAN = "m = ReduceMean<keepdims=1>(a, hw) "
GATES = {
    "sigmoid": "g = Sigmoid(m) ",
    "hardsigmoid": "g = HardSigmoid(m) ",
    "spelled": "t = Add(m, three) k = Clip(t, zero, six) g = Div(k, six) ",
}
CONSTANTS = "int64[2] hw = {2, 3}, float zero = {0}, float three = {3}, float six = {6}"
BODY = MAP + MEAN + GATES["sigmoid"] + "v = Mul(a, g) y = Conv(v, p, b)"


def gated(
    body: str, folder: Path, inputs: str = INPUT, largest: float = 2, **more: str
) -> tuple[ir.Model, ir.Model, int]:
    """The model, the rewritten model, and how many gates were moved. largest: of the weights."""
    source = model(body, inputs, constants=CONSTANTS, **more)
    held = source.graph.initializers["p"]
    array = held.const_value.numpy() * largest / np.abs(held.const_value.numpy()).max()  # type: ignore[union-attr]
    held.const_value = ir.tensor(array, dtype=held.dtype, name="p")
    found = source.clone()
    return source, found, rewrite.rewrite(found, folder).applied[GATED_WEIGHTS]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    "behind",
    [
        "v = Mul(a, g) y = Conv(v, p, b)",
        "v = Mul(g, a) y = Conv(v, p)",
        "v = Mul(a, g) u = Conv(v, p, b) y = Add(u, a)",
        "v = Mul(a, g) u = Conv(v, p, b) z = Conv<pads=[1,1,1,1]>(u, w) y = Mul(z, g)",
    ],
)
def test_a_gate_scales_the_weights(gate: str, behind: str, tmp_path: Path) -> None:
    source, found, count = gated(MAP + MEAN + GATES[gate] + behind, tmp_path)
    assert count == 1
    assert [node.op_type for node in found.graph].count("MatMul") == 1
    for batch in (1, 3):
        same(source, found, batch)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        pytest.param(BODY.replace("Sigmoid", "Relu"), INPUT, id="weights could overflow"),
        pytest.param(BODY.replace("g = Sigmoid(m)", "k = Clip(m, zero) g = Div(k, six)"), INPUT, id="no upper bound"),
        pytest.param(BODY.replace("g = Sigmoid(m)", "k = Clip(m, zero, six) g = Mul(k, six)"), INPUT, id="up to 36"),
        pytest.param(BODY.replace("v, p, b", "v, w, b"), INPUT, id="3x3"),
        pytest.param(BODY.replace("y = Conv", "y = Conv<strides=[2,2]>"), INPUT, id="stride"),
        pytest.param(BODY + " z = Relu(v)", INPUT, id="the scaled map is read elsewhere"),
        pytest.param(BODY.replace("Sigmoid(m)", "Sigmoid(a)"), INPUT, id="a gate of every pixel"),
        pytest.param(BODY, "float[N, 8, 3, 3] x", id="as many weights as pixels"),
        pytest.param(BODY, "float[N, 8, H, W] x", id="a number of pixels that is not stated"),
    ],
)
def test_what_keeps_its_gate(body: str, inputs: str, tmp_path: Path) -> None:
    outputs = "float[] y, float[] z" if "z =" in body else "float[] y"
    _, found, count = gated(body, tmp_path, inputs, outputs=outputs)
    assert count == 0
    assert not any(node.op_type == "MatMul" for node in found.graph)


@pytest.mark.parametrize("gate", ["g = Relu(m)", "g = Neg(m)", "g = Conv(m, p, b)"])
def test_a_gate_of_any_size_scales_weights_up_to_one(gate: str, tmp_path: Path) -> None:
    body = BODY.replace("g = Sigmoid(m)", gate)
    source, found, count = gated(body, tmp_path, largest=1)
    assert count == 1
    same(source, found, 3)
    assert gated(body, tmp_path, largest=1.001)[2] == 0


def test_artifacts_for_cpus_keep_their_gates(tmp_path: Path) -> None:
    onnx.save(ir.to_proto(model(BODY, INPUT, constants=CONSTANTS)), tmp_path / "m.onnx")
    made = flow.optimize(tmp_path / "m.onnx", tmp_path / "out", archs=(), verify=False)
    assert not made.manifest.rewrites.get(GATED_WEIGHTS)


def test_people_read_of_the_product_without_its_layout() -> None:
    made = Kernel(
        name="MatMulAdd_0", kind="gemm", ops=("Transpose", "Reshape", "MatMul", "Reshape", "Transpose", "Add"),
        inputs=(), outputs=(), cpu=False, variants=(), sites=(),
    )  # fmt: skip
    assert made.operators == ("MatMul", "Add")
    own = made.model_copy(update={"ops": ("Transpose", "MatMul", "Reshape")})
    assert own.operators == own.ops


@pytest.mark.gpu
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", ["float16", "float"])
@pytest.mark.parametrize("sizes", [(6, 6), (28, 29)])
def test_on_the_gpu(dtype: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    """One session, several batches, against float32 of the same weights on the CPU."""
    body = BODY.replace("y = Conv(v, p, b)", "u = Conv(v, p, b) y = Add(u, a)")
    weights = f"{dtype}[8,8,3,3] w, {dtype}[8,8,1,1] p, {dtype}[8] b"
    inputs = f"{dtype}[N, 8, {sizes[0]}, {sizes[1]}] x"
    source = model(body, inputs, f"{dtype}[] y", weights, "int64[2] hw = {2, 3}")
    exact = model(
        body, inputs.replace(dtype, "float"), "float[] y", weights.replace(dtype, "float"), "int64[2] hw = {2, 3}"
    )
    for name, value in source.graph.initializers.items():
        if value.dtype == ir.DataType.FLOAT16 and value.const_value is not None:
            exact.graph.initializers[name].const_value = ir.tensor(value.const_value.numpy().astype(np.float32))
    onnx.save(ir.to_proto(source), tmp_path / "m.onnx")
    made = flow.optimize(tmp_path / "m.onnx", tmp_path / "out", archs=(device_arch(),), verify=False)
    assert made.manifest.rewrites[GATED_WEIGHTS] == 1
    session = made.session(providers=[sessions.CUDA])
    rng = np.random.default_rng(2)
    for batch in (1, 3, 32, 2):
        x = rng.standard_normal((batch, 8, *sizes)).astype(np.float16)
        (expected,) = run(exact, {"x": x.astype(np.float32)})
        (found,) = session.run(None, {"x": x.astype(source.graph.inputs[0].dtype.numpy())})  # type: ignore[union-attr]
        limit = 4e-3 if dtype == "float16" else 2e-3  # in float32 convolutions may use TF32
        np.testing.assert_allclose(found.astype(np.float32), expected, rtol=limit, atol=limit, err_msg=str(batch))
