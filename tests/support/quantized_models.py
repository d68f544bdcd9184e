"""Models as quantizers write them: onnxruntime's tools on a model file, and graphs of the shape that genai builds."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process

from tests.support.graphs import graph

Tool = Callable[[Path, Path], None]  # a model file -> the file that the tool writes
LEVELS = {
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def drawn(session: ort.InferenceSession, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs for a model whose dims are numbers."""
    rng = np.random.default_rng(seed)
    return {
        i.name: rng.standard_normal(i.shape).astype(np.float32)
        if i.type == "tensor(float)"
        else rng.integers(0, 2, i.shape).astype(np.int64)
        for i in session.get_inputs()
    }


class _Drawn(CalibrationDataReader):
    """Three sets of drawn inputs."""

    def __init__(self, model: Path) -> None:
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        self._feeds = iter([drawn(session, seed) for seed in range(3)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def _static(**options: object) -> Tool:
    def run(model: Path, out: Path) -> None:
        quantization.quantize_static(str(model), str(out), _Drawn(model), **options)

    return run


def _dynamic(**options: object) -> Tool:
    def run(model: Path, out: Path) -> None:
        quantization.quantize_dynamic(str(model), str(out), **options)

    return run


def _blocks(bits: int, size: int, symmetric: bool, form: QuantFormat = QuantFormat.QOperator) -> Tool:
    def run(model: Path, out: Path) -> None:
        options = {"bits": bits, "block_size": size, "is_symmetric": symmetric, "quant_format": form}
        config = DefaultWeightOnlyQuantConfig(**options)
        quantizer = MatMulNBitsQuantizer(onnx.load(model), **options, algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(str(out), False)

    return run


_SYMMETRIC = {"ActivationSymmetric": True, "WeightSymmetric": True}
_U8, _I8 = QuantType.QUInt8, QuantType.QInt8
TOOLS: dict[str, Tool] = {
    "pre_process": lambda model, out: quant_pre_process(str(model), str(out)),
    "qdq_u8i8": _static(quant_format=QuantFormat.QDQ, activation_type=_U8, weight_type=_I8),
    "qdq_i8_channels": _static(
        quant_format=QuantFormat.QDQ, activation_type=_I8, weight_type=_I8, per_channel=True, extra_options=_SYMMETRIC
    ),
    "qdq_u8_reduced": _static(
        quant_format=QuantFormat.QDQ, activation_type=_U8, weight_type=_U8, reduce_range=True,
        extra_options={"DedicatedQDQPair": True},
    ),
    "qdq_u16": _static(quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt16, weight_type=_I8),
    "qdq_int4": _static(quant_format=QuantFormat.QDQ, activation_type=_U8, weight_type=QuantType.QInt4),
    "qoperator": _static(quant_format=QuantFormat.QOperator, activation_type=_U8, weight_type=_I8),
    "dynamic": _dynamic(weight_type=_I8),
    "dynamic_channels": _dynamic(weight_type=_U8, per_channel=True, reduce_range=True),
    **{
        f"nbits_{bits}_{size}{'' if symmetric else '_zero_points'}": _blocks(bits, size, symmetric)
        for bits, size, symmetric in ((4, 16, False), (4, 32, True), (4, 256, False), (8, 32, False), (8, 128, True))
    },
    "blocked_qdq": _blocks(4, 32, True, QuantFormat.QDQ),
    "blocked_qdq_zero_points": _blocks(4, 16, False, QuantFormat.QDQ),
}  # fmt: skip


def quantized(model: Path, tool: str, folder: Path) -> Path:
    """The model file that the tool makes of `model`, in `folder`."""
    out = folder / f"{tool}.onnx"
    logging.disable(logging.ERROR)  # the tools log every node that they leave
    try:
        TOOLS[tool](model, out)
    finally:
        logging.disable(logging.NOTSET)
    return out


def quantized_around_products(model: Path, folder: Path, *, leave: list[str]) -> Path:
    """Q and DQ around MatMul and Gemm alone, int8 per channel, but not around the nodes of these names."""
    out = folder / "products.onnx"
    _static(
        quant_format=QuantFormat.QDQ, activation_type=_I8, weight_type=_I8, per_channel=True,
        op_types_to_quantize=["MatMul", "Gemm"], nodes_to_exclude=leave,
    )(model, out)  # fmt: skip
    return out


def save_text(inputs: str, outputs: str, body: str, constants: str, opset: int, path: Path) -> None:
    """Save a graph in onnx's text syntax. Constants without a value are drawn: scales between 0.01 and 0.1."""
    rng, declared = np.random.default_rng(3), []
    drawn: dict[str, onnx.TensorProto] = {}
    for constant in filter(None, re.split(r",\s*(?=\w+(?:\[[^]]*\])?\s+\w+)", constants)):
        if "=" in constant:
            declared.append(constant)
            continue
        dtype, dims, name = re.fullmatch(r"(\w+?)(?:\[([\d, ]+)\])? (\w+)", constant.strip()).groups()  # type: ignore[union-attr]
        shape = [int(d) for d in (dims or "").split(",") if d]
        kind = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(dtype.upper()))
        values = (
            rng.uniform(0.01, 0.1, shape) if dtype in ("float", "float16") and name != "f" else rng.uniform(0, 8, shape)
        )
        drawn[name] = numpy_helper.from_array(np.asarray(values, kind), name)
    model = graph(inputs, outputs, body, constants=", ".join(declared), opset=opset)
    proto = ir.to_proto(model)
    proto.graph.initializer.extend(drawn.values())
    proto.ir_version = 10
    onnx.save(proto, path)


def saved_by_ort(model: Path, level: str) -> Path:
    """The model as ONNX Runtime's optimizer saves it at a level of LEVELS, for its CPU provider."""
    out = model.with_name(f"{model.stem}.{level}.onnx")
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 4
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return out


def genai(
    *, layers: int = 2, bits: int = 4, zero_points: bool = False, dtype: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    """A decoder as onnxruntime-genai's builder writes it: hidden 64, 4 heads of 16, 2 of keys, blocks of 32."""
    return _Genai(layers, bits, zero_points, dtype).model()


class _Genai:
    hidden, heads, groups, size, inner, vocabulary, block = 64, 4, 2, 16, 96, 50, 32

    def __init__(self, layers: int, bits: int, zero_points: bool, dtype: int) -> None:
        self.layers, self.bits, self.zero_points, self.dtype = layers, bits, zero_points, dtype
        self.rng = np.random.default_rng(7)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, inputs: list[str], out: str | list[str], domain: str = "", **attributes: object) -> str:
        outputs = [out] if isinstance(out, str) else out
        self.nodes.append(helper.make_node(kind, inputs, outputs, outputs[0] + "_node", domain=domain, **attributes))
        return outputs[0]

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, name: str, *dims: int, scale: float = 1.0, mean: float = 0.0) -> str:
        array = self.rng.standard_normal(dims) * scale + mean
        return self.constant(name, array.astype(helper.tensor_dtype_to_np_dtype(self.dtype)))

    def product(self, x: str, out: str, columns: int, rows: int) -> str:
        blocks = -(-rows // self.block)
        packed = self.rng.integers(0, 256, (columns, blocks, self.block * self.bits // 8), dtype=np.uint8)
        scales = self.floats(f"{out}.scales", columns, blocks, scale=0.002, mean=0.01)
        inputs = [x, self.constant(f"{out}.weight", packed), scales]
        if self.zero_points:
            width = -(-blocks * self.bits // 8)
            inputs.append(
                self.constant(f"{out}.zero_points", self.rng.integers(0, 256, (columns, width), dtype=np.uint8))
            )
        return self.op(
            "MatMulNBits", inputs, out, "com.microsoft", K=rows, N=columns, bits=self.bits, block_size=self.block,
            accuracy_level=4 if self.dtype == TensorProto.FLOAT else 0,
        )  # fmt: skip

    def layer(self, k: int, x: str, skip: str) -> tuple[str, str]:
        """x: the norm's result. Returns the next norm's result, and the sum that it normalized."""
        p = f"layers.{k}."
        width, kept = self.heads * self.size, self.groups * self.size
        q, key, v = (self.product(x, p + n, w, self.hidden) for n, w in (("q", width), ("k", kept), ("v", kept)))
        caches = [f"past_key_values.{k}.{n}" for n in ("key", "value")]
        present = [f"present.{k}.{n}" for n in ("key", "value")]
        attention = self.op(
            "GroupQueryAttention", [q, key, v, *caches, "lengths", "total", "cos_cache", "sin_cache"],
            [p + "attention", *present], "com.microsoft", num_heads=self.heads, kv_num_heads=self.groups,
            scale=self.size**-0.5, do_rotary=1, rotary_interleaved=0, local_window_size=-1, softcap=0.0,
        )  # fmt: skip
        x, skip = self.norm(skip, self.product(attention, p + "o", self.hidden, width), p + "post")
        gate, up = (self.product(x, p + n, self.inner, self.hidden) for n in ("gate", "up"))
        act = self.op("Mul", [gate, self.op("Sigmoid", [gate], p + "sigmoid")], p + "act")
        down = self.product(self.op("Mul", [act, up], p + "gated"), p + "down", self.hidden, self.inner)
        return self.norm(skip, down, p + "next")

    def norm(self, skip: str, x: str, name: str) -> tuple[str, str]:
        weight = self.floats(name + ".weight", self.hidden, scale=0.1, mean=1.0)
        outputs = [name, "", "", name + ".sum"]
        self.op("SkipSimplifiedLayerNormalization", [skip, x, weight], outputs, "com.microsoft", epsilon=1e-5)
        return name, name + ".sum"

    def embedded(self) -> str:
        blocks = self.hidden // self.block
        table = self.rng.integers(0, 256, (self.vocabulary, self.hidden * self.bits // 8), dtype=np.uint8)
        inputs = [
            self.constant("table", table),
            "input_ids",
            self.floats("table.scales", self.vocabulary, blocks, scale=0.01),
        ]
        return self.op(
            "GatherBlockQuantized", inputs, "embedded", "com.microsoft", bits=self.bits, block_size=self.block,
            gather_axis=0, quantize_axis=1,
        )  # fmt: skip

    def model(self) -> onnx.ModelProto:
        self.op("ReduceSum", ["attention_mask", self.constant("one", np.array([1]))], "sums", keepdims=0)
        self.op("Cast", [self.op("Sub", ["sums", "one"], "last")], "lengths", to=TensorProto.INT32)
        self.op(
            "Gather", [self.op("Shape", ["attention_mask"], "mask_shape"), self.constant("at", np.array(1))], "count"
        )
        self.op("Cast", ["count"], "total", to=TensorProto.INT32)
        angles = np.outer(np.arange(32), 10000.0 ** (-np.arange(self.size // 2) / (self.size // 2)))
        storage = helper.tensor_dtype_to_np_dtype(self.dtype)
        self.constant("cos_cache", np.cos(angles).astype(storage))
        self.constant("sin_cache", np.sin(angles).astype(storage))
        skip = self.embedded()
        weight = self.floats("first.weight", self.hidden, scale=0.1, mean=1.0)
        x = self.op("SimplifiedLayerNormalization", [skip, weight], "first", axis=-1, epsilon=1e-5, stash_type=1)
        for k in range(self.layers):
            x, skip = self.layer(k, x, skip)
        self.product(x, "logits", self.vocabulary, self.hidden)
        return helper.make_model(
            helper.make_graph(self.nodes, "genai", self.inputs(), self.outputs(), self.constants),
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10,
        )  # fmt: skip

    def inputs(self) -> list[onnx.ValueInfoProto]:
        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
        mask = helper.make_tensor_value_info(
            "attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]
        )
        return [ids, mask, *self._caches("past_key_values", "past_sequence_length")]

    def outputs(self) -> list[onnx.ValueInfoProto]:
        dims = ["batch_size", "sequence_length", self.vocabulary]
        logits = helper.make_tensor_value_info("logits", self.dtype, dims)
        return [logits, *self._caches("present", "total_sequence_length")]

    def _caches(self, name: str, length: str) -> list[onnx.ValueInfoProto]:
        dims = ["batch_size", self.groups, length, self.size]
        return [
            helper.make_tensor_value_info(f"{name}.{k}.{part}", self.dtype, dims)
            for k in range(self.layers)
            for part in ("key", "value")
        ]
