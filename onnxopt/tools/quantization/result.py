"""What `quantize` made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from onnxopt.graph.refusal import Refusal
from onnxopt.tools.quantization.products import Product
from onnxopt.tools.quantization.times import Times
from onnxopt.verification.lowering.goals import Quality


@dataclasses.dataclass(frozen=True)
class Quantized:
    """A quantized model.

    path: its file. products: what is quantized. left: the nodes with a weight that stay float32. restored: names of
    those among them that stay float32 because outputs missed a goal otherwise. bytes_before, bytes_after: of the
    files with their weights. quality: of each output against the float32 model, run by ONNX Runtime on the CPU. data:
    names of the inputs that this was measured with, () for generated ones. alone: signal to noise in dB of the worst
    output with one product quantized and no other one, by node; measured where outputs miss a goal and no few products
    are at fault. times: of the products on the GPU that they were placed for, where there is one.
    """

    path: Path
    format: str
    algorithm: str
    block_size: int
    products: tuple[Product, ...]
    left: tuple[Refusal, ...]
    restored: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    quality: tuple[Quality, ...]
    data: tuple[str, ...]
    alone: Mapping[str, float]
    times: Times | None = None
