"""Quantize: a float32 model into 8 or 4 bits, by ONNX Runtime's quantizers. May import every room."""

from __future__ import annotations

from onnxopt.tools.quantization.flow import quantize
from onnxopt.tools.quantization.options import Quantization
from onnxopt.tools.quantization.products import Product
from onnxopt.tools.quantization.result import Quantized

__all__ = ["Product", "Quantization", "Quantized", "quantize"]
