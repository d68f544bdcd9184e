"""Models as quantizers write them: onnxruntime's tools on a model file."""

from __future__ import annotations

import functools
import logging
import re
import tempfile
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
    """The model file that the tool makes of `model`, in `folder`. Some tools leave more in the current one."""
    out = folder / f"{tool}.onnx"
    out.write_bytes(_quantized(model, tool))
    return out


@functools.cache
def _quantized(model: Path, tool: str) -> bytes:
    logging.disable(logging.ERROR)  # the tools log every node that they leave
    try:
        with tempfile.TemporaryDirectory() as folder:
            TOOLS[tool](model, out := Path(folder) / "quantized.onnx")
            return out.read_bytes()
    finally:
        logging.disable(logging.NOTSET)


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
