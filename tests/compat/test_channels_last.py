"""Without the library, functions of convolutions in channels last cost nothing: ONNX Runtime cancels all Transposes.

The optimized graph of each release has the operators of the original, its fused convolutions included.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from cases.models import fuse, outline
from onnxopt.fusion.channels_last import CONVOLUTIONS
from onnxopt.graph import normalize, rewrite
from onnxopt.kinds.convolution import steps
from onnxopt.runtime.releases import TRIED
from tests.compat import CannotInstall, install
from tests.support import sampling
from tests.support.kinds.random_convolution_graphs import Building
from tests.support.outlined import outlined

RELEASES = tuple(release for release in TRIED if release != "1.26.0")
LEVELS = ("ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
_RUNNER = """
import sys, numpy as np, onnxruntime as ort
x = np.load("x.npy")
for level in sys.argv[1:]:
    for name in ("original", "functions"):
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.optimized_model_filepath = f"{name}.{level}.onnx"
        session = ort.InferenceSession(f"{name}.onnx", options, providers=["CPUExecutionProvider"])
        np.save(f"{name}.{level}.npy", session.run(None, {"x": x})[0])
"""


class Network(Building):
    """A network of named values; weights are random."""

    def __init__(self) -> None:
        self.nodes, self.constants, self._count = [], [], 0
        self._random = np.random.default_rng(3)

    def conv(self, x: str, c: int, k: int, size: int = 3, stride: int = 1, group: int = 1) -> str:
        weight, half = self.normal(k, c // group, size, size), size // 2
        window = {"strides": [stride] * 2, "pads": [half] * 4, "kernel_shape": [size] * 2}
        return self.node("Conv", [x, weight, self.normal(k)], group=group, **window)[0]

    def group_norm(self, x: str, c: int, groups: int) -> str:
        """As exporters write it."""
        ones, zeros = (self.constant(np.full(groups, v, np.float32)) for v in (1, 0))
        grouped = self.of("Reshape", x, self.ints(0, groups, -1))
        normed = self.of("InstanceNormalization", grouped, ones, zeros, epsilon=1e-5)
        whole = self.of("Reshape", normed, self.of("Shape", x))
        return self.of("Add", self.of("Mul", whole, self.normal(c, 1, 1)), self.normal(c, 1, 1))

    def silu(self, x: str) -> str:
        return self.of("Mul", x, self.of("Sigmoid", x))

    def of(self, op_type: str, *inputs: str, **attributes: object) -> str:
        return self.node(op_type, list(inputs), **attributes)[0]


def residual(b: Network) -> str:
    """As ResNet: a stem, a pool, blocks with a sum and an activation at the end, a mean and a product."""
    x = b.of("Relu", b.conv("x", 3, 16, 7, 2))
    x = b.of("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for c, k, stride in ((16, 16, 1), (16, 32, 2), (32, 32, 1)):
        branch = b.conv(b.of("Relu", b.conv(x, c, k, 3, stride)), k, k)
        x = b.of("Relu", b.of("Add", branch, x if c == k and stride == 1 else b.conv(x, c, k, 1, stride)))
    pooled = b.of("Flatten", b.of("ReduceMean", x, b.ints(2, 3), keepdims=1))
    return b.of("MatMul", pooled, b.normal(32, 10))


def mobile(b: Network) -> str:
    """As MobileNet and detectors: depthwise, squeeze-excite, SiLU, Split, Concat, Resize."""
    x = b.conv("x", 3, 16, 3, 2)
    x = b.of("Mul", x, b.of("Sigmoid", x))
    deep = b.of("HardSwish", b.conv(x, 16, 16, 5, 1, 16))
    gate = b.of("ReduceMean", deep, b.ints(2, 3), keepdims=1)
    gate = b.of("Sigmoid", b.conv(b.of("Relu", b.conv(gate, 16, 8, 1)), 8, 16, 1))
    x = b.of("Add", b.conv(b.of("Mul", deep, gate), 16, 16, 1), x)
    one, two = b.node("Split", [x, b.ints(8, 8)], 2, axis=1)
    x = b.of("Concat", one, b.of("Relu", b.conv(two, 8, 8)), axis=1)
    small = b.of("Relu", b.conv(x, 16, 16, 3, 2))
    large = b.of("Resize", small, "", b.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    return b.conv(b.of("Concat", large, x, axis=1), 32, 8, 1)


def decoder(b: Network) -> str:
    """As a U-Net's: transposed convolutions with and without overlap, a Concat with what was read before."""
    x = b.of("Relu", b.conv("x", 3, 16))
    small = b.of("LeakyRelu", b.conv(b.of("Relu", b.conv(x, 16, 16, 3, 2)), 16, 32, 3, 2))
    large = b.of("ConvTranspose", small, b.normal(32, 16, 4, 4), b.normal(16), strides=[2, 2], pads=[1] * 4)
    large = b.of("Relu", large)
    larger = b.of("Relu", b.of("ConvTranspose", large, b.normal(16, 16, 2, 2), b.normal(16), strides=[2, 2]))
    return b.conv(b.of("Concat", larger, x, axis=1), 32, 8, 1)


def halves(b: Network) -> str:
    """As detectors: a 1x1 convolution, a Split, convolutions on one half, and a Concat of all, each with SiLU."""

    def active(x: str) -> str:
        return b.of("Mul", x, b.of("Sigmoid", x))

    x = active(b.conv(active(b.conv("x", 3, 64, 3, 2)), 64, 128, 1))
    parts = b.node("Split", [x, b.ints(64, 64)], 2, axis=1)
    for _ in range(2):
        parts.append(b.of("Add", parts[-1], active(b.conv(active(b.conv(parts[-1], 64, 64)), 64, 64))))
    return b.conv(b.of("Concat", *parts, axis=1), 256, 8, 1)


def diffusion(b: Network) -> str:
    """As UNet2DCondition and its decoder: group norms with SiLU, time embedding, residual, a shortcut over a Concat."""
    x = b.conv("x", 3, 16, 3)
    for c, k in ((16, 16), (16, 32)):
        branch = b.conv(b.silu(b.group_norm(x, c, 4)), c, k)
        time = b.of("Unsqueeze", b.of("MatMul", b.of("ReduceMean", "x", b.ints(2, 3), keepdims=0), b.normal(3, k)),
                    b.ints(2, 3))  # fmt: skip
        branch = b.conv(b.silu(b.group_norm(b.of("Add", branch, time), k, 8)), k, k)
        x = b.of("Add", x if c == k else b.conv(x, c, k, 1), branch)
    x = b.of("Concat", x, b.conv("x", 3, 16), axis=1)
    return b.conv(b.silu(b.group_norm(x, 48, 8)), 48, 3)


def volumes(b: Network) -> str:
    """As a U-Net of volumes: strided, flat and transposed convolutions, norms of channels and groups, a pool."""

    def conv(x: str, c: int, k: int, sides: tuple[int, ...] = (3, 3, 3), stride: int = 1) -> str:
        pads = [side // 2 for side in sides] * 2
        inputs = [x, b.normal(k, c, *sides), b.normal(k)]
        return b.of("Conv", *inputs, kernel_shape=sides, strides=[stride] * 3, pads=pads)

    x = b.of("LeakyRelu", b.of("InstanceNormalization", conv("x", 3, 16), b.normal(16), b.normal(16)))
    x = b.of("Relu", conv(conv(x, 16, 16, (1, 3, 3)), 16, 16, (3, 1, 1)))
    small = conv(b.of("MaxPool", x, kernel_shape=[2] * 3, strides=[2] * 3), 16, 32)
    ones, zeros = (b.constant(np.full(4, v, np.float32)) for v in (1, 0))
    grouped = b.of("Reshape", small, b.ints(0, 4, -1))
    whole = b.of("Reshape", b.of("InstanceNormalization", grouped, ones, zeros), b.of("Shape", small))
    small = conv(b.of("Relu", b.of("Mul", whole, b.normal(32, 1, 1, 1))), 32, 32, stride=2)
    large = b.of("ConvTranspose", small, b.normal(32, 16, 4, 4, 4), b.normal(16), strides=[4] * 3)
    return conv(b.of("Concat", b.of("Add", large, x), x, axis=1), 32, 8, (1, 1, 1))


def model(build, batch: int | str) -> onnx.ModelProto:  # type: ignore[no-untyped-def]
    b = Network()
    y = build(b)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, *sizes_of(build)])
    outputs = [helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None)]
    graph = helper.make_graph(b.nodes, "g", [x], outputs, b.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def sizes_of(build) -> tuple[int, ...]:  # type: ignore[no-untyped-def]
    """Of the input of a network, but for the batch."""
    return (3, 8, 16, 16) if build is volumes else (3, 64, 64)


@dataclasses.dataclass(frozen=True)
class Ran:
    """The operators of the graph that ONNX Runtime runs, and the result."""

    ops: collections.Counter[str]
    y: np.ndarray


def run(release: Path, source: onnx.ModelProto, functions: ir.Model, folder: Path) -> dict[str, tuple[Ran, Ran]]:
    """Both models at each of LEVELS."""
    onnx.save(source, folder / "original.onnx")
    onnx.save(ir.to_proto(functions), folder / "functions.onnx")
    sizes = [dim.dim_value for dim in source.graph.input[0].type.tensor_type.shape.dim[1:]]
    np.save(folder / "x.npy", np.random.default_rng(1).standard_normal((2, *sizes)).astype(np.float32))
    command = [sys.executable, "-s", "-c", _RUNNER, *LEVELS]
    environment = dict(os.environ) | {"PYTHONPATH": str(release)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert not done.returncode, done.stderr

    def ran(name: str) -> Ran:
        nodes = onnx.load(folder / f"{name}.onnx").graph.node
        return Ran(collections.Counter(node.op_type for node in nodes), np.load(folder / f"{name}.npy"))

    return {level: (ran(f"original.{level}"), ran(f"functions.{level}")) for level in LEVELS}


@pytest.mark.compat
@pytest.mark.parametrize(
    ("build", "batch", "release"),
    sampling.pairs(itertools.product((residual, mobile, decoder, diffusion, volumes), (2, "N"), RELEASES)),
)
def test_transposes_cancel(build, batch: int | str, release: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    try:
        installed = install(release)
    except CannotInstall as error:
        pytest.skip(str(error))
    source = model(build, batch)
    laid_out = normalize.normalize(ir.from_proto(source)).model
    applied = rewrite.rewrite(laid_out, tmp_path).applied
    convolutions, gated = applied["channels_last"], applied["gated_weights"]
    assert convolutions == sum(node.op_type in CONVOLUTIONS for node in source.graph.node)
    assert gated == (build is mobile)
    assert outlined(laid_out) == convolutions - gated
    assert not any(node.op_type in CONVOLUTIONS for node in laid_out.graph)
    for level, (expected, found) in run(installed, source, laid_out, tmp_path).items():
        # Below the default level, ONNX Runtime leaves the last Transpose in front of a mean that Flatten reads, and one
        # of a gate's one pixel. It always leaves those of the two time embeddings, of one pixel too.
        left = 2 if build is diffusion else int(build in (residual, mobile) and level == LEVELS[0])
        assert found.ops["Transpose"] == left, found.ops
        convs = ("Conv", "FusedConv", "ConvTranspose")
        assert sum(found.ops[op] for op in convs) == sum(expected.ops[op] for op in convs) - gated
        for op in () if gated else (*convs, "ReorderInput", "ReorderOutput"):
            assert found.ops[op] == expected.ops[op], op
        np.testing.assert_allclose(found.y, expected.y, rtol=1e-4, atol=1e-4)


@pytest.mark.compat
@pytest.mark.parametrize("release", RELEASES)
def test_transposes_of_a_block_cancel(release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of several convolutions with a Slice and a Concat between them."""
    try:
        installed = install(release)
    except CannotInstall as error:
        pytest.skip(str(error))
    # Blocks are of 16-bit floats, whose convolutions the CPU provider does not have.
    monkeypatch.setattr(steps, "_COMPILED_DTYPES", ("float",))
    source = model(halves, 2)
    laid_out = normalize.normalize(ir.from_proto(source)).model
    rewrite.rewrite(laid_out, tmp_path)
    kernels = outline(laid_out, fuse(laid_out))
    assert [len(k.program.steps) for k in kernels if k.kind.name == "block"] == [5]  # type: ignore[attr-defined]
    for expected, found in run(installed, source, laid_out, tmp_path).values():
        assert not found.ops["Transpose"], found.ops
        convs = ("Conv", "FusedConv", "ReorderInput", "ReorderOutput")
        assert {op: found.ops[op] for op in convs} == {op: expected.ops[op] for op in convs}
        np.testing.assert_allclose(found.y, expected.y, rtol=1e-3, atol=1e-3)
