"""One model an opset from 7 on, written as exporters wrote it then: attributes that became inputs, operators that went.

Importing this adds the models to the registry as opset_7 ... opset_23, with one model each for the operators whose
meaning changed.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.hostile.hostile_building import MODELS, Feeds, hostile, model_of, random_feeds, text, value

OPSETS = range(7, 24)


class _Writer:
    """Collects nodes and constants, in the form that `opset` asks for."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def __call__(self, op_type: str, *inputs: str | np.ndarray, outputs: int = 1, **attributes) -> str | list[str]:
        names = []
        for given in inputs:
            if not isinstance(given, str):
                self.weights[f"c{len(self.weights)}"] = np.asarray(given)
                given = f"c{len(self.weights) - 1}"
            names.append(given)
        results = [f"{op_type.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, names, results, **attributes))
        return results[0] if outputs == 1 else results

    def with_axes(self, op_type: str, x: str, axes: list[int], since: int, **attributes) -> str:
        """An operator whose axes are an attribute before opset `since` and an input from then on."""
        if self.opset < since:
            return self(op_type, x, axes=axes, **attributes)
        return self(op_type, x, np.int64(axes), **attributes)


def _opset_model(opset: int) -> tuple[onnx.ModelProto, Feeds]:
    random = np.random.default_rng(opset)
    w = _Writer(opset)
    x = w("Conv", "x", random.standard_normal((4, 3, 3, 3)).astype(np.float32), kernel_shape=[3, 3], pads=[1] * 4)
    vectors = [random.uniform(0.5, 2, 4).astype(np.float32) for _ in range(4)]
    x = w("BatchNormalization", x, *vectors, epsilon=1e-3)
    x = w("Clip", x, min=-1.0, max=2.0) if opset < 11 else w("Clip", x, np.float32(-1), np.float32(2))
    x = w("Dropout", x, ratio=0.25) if opset < 12 else w("Dropout", x, np.float32(0.25))
    x = _resize(w, x)
    x = _pad_and_slice(w, x)
    x = w("Softmax", x, axis=1)
    x = w("LogSoftmax", x)
    x = w("Hardmax", w("Add", x, np.float32([[[[0.5]]]])), axis=3)
    x = w("Add", x, w("LeakyRelu", "x2", alpha=0.2))
    mean = w.with_axes("ReduceMean", x, [2, 3], 18, keepdims=1)
    total = w.with_axes("ReduceSum", x, [1], 13, keepdims=0)
    squeezed = w.with_axes("Squeeze", mean, [2, 3], 13)
    flat = w("Flatten", w.with_axes("Unsqueeze", squeezed, [1], 13), axis=1)
    matrix = random.standard_normal((5, 4)).astype(np.float32)
    gemm = w("Gemm", flat, matrix, np.zeros(5, np.float32), transB=1, alpha=0.5)
    inputs, attributes = ((), {"split": [2, 3]}) if opset < 13 else ((np.int64([2, 3]),), {})
    first, second = w("Split", gemm, *inputs, axis=1, outputs=2, **attributes)
    inputs, attributes = ((), {"k": 2}) if opset < 10 else ((np.int64([2]),), {})
    top, index = w("TopK", second, *inputs, axis=1, outputs=2, **attributes)
    y = w("Mul", w("Pow", first, np.float32(2)), w("Sigmoid", top))
    outputs = [(y, TensorProto.FLOAT, ["N", 2]), (index, TensorProto.INT64, ["N", 2]), (total, TensorProto.FLOAT, None)]
    named = ["y", "index", "total"]
    for name, (result, _, _) in zip(named, outputs, strict=True):
        w.nodes.append(helper.make_node("Identity", [result], [name]))
    declared = [value(n, dims or ["N", "H", "W"], dtype) for n, (_, dtype, dims) in zip(named, outputs, strict=True)]
    inputs = [value("x", ["N", 3, 6, 6]), value("x2", ["N", 4, 12, 12])]
    if opset < 9:  # IR version 3: every initializer is listed as an input too
        inputs += [value(n, list(a.shape), helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in w.weights.items()]
    model = model_of(w.nodes, inputs, declared, w.weights, opset=opset)
    return model, random_feeds(model, {"N": 1}, {"N": 3})


def _resize(w: _Writer, x: str) -> str:
    """Nearest by 2, in the operator of the day."""
    scales = np.float32([1, 1, 2, 2])
    if w.opset < 9:
        return w("Upsample", x, scales=list(map(float, scales)), mode="nearest")
    if w.opset < 10:
        return w("Upsample", x, scales, mode="nearest")
    if w.opset < 11:
        return w("Resize", x, scales, mode="nearest")
    return w("Resize", x, np.zeros(0, np.float32), scales, mode="linear", coordinate_transformation_mode="half_pixel")


def _pad_and_slice(w: _Writer, x: str) -> str:
    pads = [0, 0, 1, 1, 0, 0, 1, 1]
    x = w("Pad", x, pads=pads, value=0.5) if w.opset < 11 else w("Pad", x, np.int64(pads), np.float32(0.5))
    if w.opset < 10:
        return w("Slice", x, starts=[1, 1], ends=[13, -1], axes=[2, 3])
    return w("Slice", x, np.int64([1, 1]), np.int64([13, -1]), np.int64([2, 3]))


for _opset in OPSETS:
    MODELS[f"opset_{_opset}"] = functools.partial(_opset_model, _opset)


@hostile
def softmax_of_middle_axis_before_13():
    return text(
        "g (float[N,M,4] x) => (float[N,M,4] y, float[N,M,4] z) { y = Softmax <axis = 1> (x)  z = LogSoftmax (x) }",
        opset=11,
        ir_version=6,
    )


@hostile
def resize_of_opset_10():
    return text(
        """g (float[N,2,5,5] x) => (float[N,2,A,B] y, float[N,2,C,D] z) <float[4] s = {1, 1, 1.5, 2.5}> {
            y = Resize <mode = "linear"> (x, s)  z = Resize <mode = "nearest"> (x, s)
        }""",
        {"N": 1},
        opset=10,
        ir_version=5,
    )


@hostile
def if_with_old_operators():
    return text(
        """g (float[1,N,M] x, bool c) => (float[N,M] y) {
            y = If (c) <
                then_branch = t () => (float[N,M] o) { o = Squeeze <axes = [0]> (x) },
                else_branch = e () => (float[N,M] o) {
                    s = Softmax <axis = 2> (x)  o = ReduceSum <axes = [0], keepdims = 0> (s) }
            >
        }""",
        opset=11,
        ir_version=6,
    )


@hostile
def grid_sample_and_dft_of_opset_17():
    return text(
        """g (float[N,1,4,4] x, float[N,3,3,2] grid, float[N,8,1] w) => (float[N,1,3,3] y, float[N,8,2] f) {
            y = GridSample <mode = "bilinear"> (x, grid)  f = DFT <axis = 1> (w)
        }""",
        {"N": 1},
        {"N": 2},
    )


@hostile
def group_normalization_of_opset_23():
    return text(
        """g (float[N,4,M] x) => (float[N,4,M] y) <float[4] s = {1, 2, 3, 4}, float[4] b = {0, 1, 0, 1}> {
            n = GroupNormalization <num_groups = 2> (x, s, b)  r = Sigmoid(n)  y = Mul(n, r)
        }""",
        {"N": 1, "M": 5},
        opset=23,
        ir_version=11,
    )


@hostile
def rms_norm_of_opset_23():
    return text(
        "g (float[N,4] x) => (float[N,4] y) <float[4] s = {1, 2, 3, 4}> { n = RMSNormalization (x, s)  y = Tanh(n) }",
        opset=23,
        ir_version=11,
    )


@hostile
def batch_normalization_in_training_mode():
    return text(
        """g (float[N,3,M] x) => (float[N,3,M] y, float[3] m) <float[3] s = {1, 2, 3}, float[3] b = {0, 1, 2}> {
            y, m, v = BatchNormalization <training_mode = 1> (x, s, b, b, s)
        }""",
        {"N": 2, "M": 5},
        opset=15,
    )
