"""ONNX Runtime's quantizers: calibration, scales, and the packing of codes."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxopt.tools.quantization import residuals
from onnxopt.tools.quantization.asked import Asked

_LARGEST_E4M3 = 448.0
Feeds = Mapping[str, Any]


class Quantizer:
    """Quantizes the nodes of one float32 model, any of them at a time. Calibrates once.

    model: a file whose nodes have names. feeds: inputs to calibrate with, for formats of activations. folder: for
    temporary files.
    """

    def __init__(self, model: Path, asked: Asked, feeds: Sequence[Feeds], folder: Path) -> None:
        self._model, self._asked, self._feeds, self._folder = model, asked, feeds, folder
        self._largest: dict[str, float] | None = None

    def write(self, nodes: Collection[str], path: Path) -> None:
        """Write the model with these nodes quantized. path: of a new file; large weights lie beside it."""
        with _quiet():
            if not self._asked.format.activations:
                self._weights(nodes, path)
            elif self._asked.name == "fp8":
                self._float8(nodes, path)
            else:
                self._activations(nodes, path)

    def _weights(self, nodes: Collection[str], path: Path) -> None:
        from onnxruntime.quantization import matmul_nbits_quantizer as nbits
        from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

        asked = self._asked
        model = load_model_with_shape_infer(self._model)
        excluded = [n.name for n in model.graph.node if n.name not in nodes]
        algorithms: dict[str, Any] = {
            "rtn": None,
            "hqq": nbits.HQQWeightOnlyQuantConfig(block_size=asked.block, bits=asked.format.bits),
            "k_quant": nbits.KQuantWeightOnlyQuantConfig(),
        }
        quantizer = nbits.MatMulNBitsQuantizer(
            model, bits=asked.format.bits, block_size=asked.block, is_symmetric=not asked.zero_points,
            nodes_to_exclude=excluded, op_types_to_quantize=("MatMul",), algo_config=algorithms[asked.algorithm],
        )  # fmt: skip
        quantizer.process()
        quantizer.model.save_model_to_file(str(path), self._is_large())

    def _activations(self, nodes: Collection[str], path: Path) -> None:
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        asked = self._asked
        added = residuals.sums(ir.load(self._model), nodes)
        operators = [*asked.format.operators, *(["Add"] if added else [])]
        methods = {
            "minmax": CalibrationMethod.MinMax,
            "entropy": CalibrationMethod.Entropy,
            "percentile": CalibrationMethod.Percentile,
        }
        quantize_static(
            self._model, path, _Reader(self._feeds), quant_format=QuantFormat.QDQ, per_channel=True,
            op_types_to_quantize=operators, nodes_to_quantize=[*nodes, *added],
            activation_type=QuantType.QInt8, weight_type=QuantType.QInt8, calibrate_method=methods[asked.algorithm],
            extra_options=self._options(*operators), use_external_data_format=self._is_large(),
            calibration_cache_path=self._folder / "calibration.json",
        )  # fmt: skip
        if added:
            quantized = ir.load(path)
            residuals.unround(quantized, added)
            RemoveUnusedNodesPass()(quantized)
            beside = path.with_name(f"unrounded_{path.name}")  # the weights of `path` are read while it is written
            ir.save(quantized, beside, external_data=f"{beside.name}.data" if self._is_large() else None)
            beside.replace(path)

    def _options(self, *operators: str) -> dict[str, Any]:
        """Only constant weights, and inputs but no results of products: what follows takes those as they are."""
        return {
            "MatMulConstBOnly": True,
            "ActivationSymmetric": True,
            "QuantizeBias": False,
            "OpTypesToExcludeOutputQuantization": list(operators or self._asked.format.operators),
        }

    def _float8(self, nodes: Collection[str], path: Path) -> None:
        """With scales of our own: quantize_static would calibrate in another way, and cannot for float16."""
        from onnxruntime.quantization import CalibrationMethod, QuantType
        from onnxruntime.quantization.calibrate import TensorData, TensorsData
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
        from onnxruntime.quantization.quant_utils import load_model_with_shape_infer, update_opset_version

        dtype = QuantType.QFLOAT8E4M3FN
        scales = self._scales_of_fp8(nodes, dtype)
        model = update_opset_version(load_model_with_shape_infer(self._model), dtype, dtype)
        replaced = {name: TensorData(avg=np.float32(0), std=np.float32(1)) for name in scales}  # by the scales
        ranges = TensorsData(CalibrationMethod.Distribution, replaced)
        excluded = [n.name for n in model.graph.node if n.name not in nodes]
        quantizer = QDQQuantizer(
            model, False, False, dtype, dtype, ranges, [], excluded, list(self._asked.format.operators),
            self._options() | {"TensorQuantOverrides": scales},
        )  # fmt: skip
        quantizer.quantize_model()
        quantizer.model.save_model_to_file(str(path), self._is_large())

    def _scales_of_fp8(self, nodes: Collection[str], dtype: Any) -> dict[str, Any]:
        """The least powers of two with which no element saturates; ONNX Runtime's own cut off at 4.5 deviations.

        Codes are floats, so that the scale's fraction makes them no more exact; dividing by a power of two is exact and
        one multiplication, which shows in the time of a norm or an activation that stores codes. Weights that multiply
        one activation share a scale, so that they can be multiplied as one.
        """
        model = onnx.load(self._model)
        weights = {t.name: t for t in model.graph.initializer}
        used = [n.input[:2] for n in model.graph.node if n.name in nodes]
        if self._largest is None:
            self._largest = self._measured()
        largest = {x: self._largest[x] for x, _ in used}
        by_activation: dict[str, float] = {}
        numbers = np.dtype(np.float32)
        for x, w in used:
            array = onnx.numpy_helper.to_array(weights[w], str(self._model.parent))
            numbers = array.dtype
            by_activation[x] = max(by_activation.get(x, 0.0), float(np.abs(array).max(initial=0.0)))
        for x, w in used:
            largest[w] = max(largest.get(w, 0.0), by_activation[x])
        zero = np.array(0, ml_dtypes.float8_e4m3fn)
        smallest = float(np.finfo(numbers).tiny)
        scales = {name: np.array(_power_of_two(y / _LARGEST_E4M3, smallest), numbers) for name, y in largest.items()}
        return {name: [{"quant_type": dtype, "scale": y, "zero_point": zero}] for name, y in scales.items()}

    def _measured(self) -> dict[str, float]:
        """The largest magnitude of every operand of a product."""
        from onnxruntime.quantization import CalibrationMethod
        from onnxruntime.quantization.calibrate import create_calibrator

        calibrator = create_calibrator(
            self._model, list(self._asked.format.operators), augmented_model_path=str(self._folder / "augmented.onnx"),
            calibrate_method=CalibrationMethod.MinMax, use_external_data_format=self._is_large(),
        )  # fmt: skip
        calibrator.collect_data(_Reader(self._feeds))
        return {
            name: float(max(np.abs(np.asarray(bound)).max(initial=0.0) for bound in measured.range_value))
            for name, measured in calibrator.compute_data().data.items()
        }

    def _is_large(self) -> bool:
        return (self._model.with_name(self._model.name + ".data")).exists()


def _power_of_two(scale: float, smallest: float) -> float:
    """The least power of two that is no smaller than both, `smallest` being one too; 1 for 0."""
    return max(2.0 ** math.ceil(math.log2(scale)), smallest) if scale > 0 else 1.0


class _Reader:
    """Inputs as ONNX Runtime's calibrators take them."""

    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._feeds = [dict(row) for row in feeds]
        self._rest = iter(self._feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rest, None)

    def rewind(self) -> None:
        self._rest = iter(self._feeds)

    def __len__(self) -> int:
        return len(self._feeds)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._rest = iter(self._feeds[start_index:end_index])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the libraries print, and without their log, which advises on preparation that was done."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
