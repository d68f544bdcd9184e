"""Which products gain time on a GPU where they are quantized: by what `tune` measured, else by prediction.

Predictions are those of runtime/predicted.py, at the sizes of the calibration data. A product in 16 bits and one of
codes take the same launch, so what is compared is what they move and multiply, as `optimize` makes kernels of them:

    fp8                  both operands have one byte an element. Products of 9 to 16 rows, and all on GPUs before
                         compute capability 8.9, run in float16
    int4, int8-weights   few rows read the codes; for more, a kernel turns the weight into floats first
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxopt.costs import gemm
from onnxopt.fusion import work
from onnxopt.fusion.work import Work
from onnxopt.graph.passes.codes.products_of_codes import ROWS_AS_FLOATS
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds.gemm.widened import FIRST_ARCH
from onnxopt.runtime import predicted
from onnxopt.runtime.gpus import Gpu
from onnxopt.tools.quantization.products import Product
from onnxopt.tools.quantization.timing import Timing

_FLOAT, _CODE = "float16", "float8e4m3fn"


@dataclasses.dataclass(frozen=True)
class Times:
    """Milliseconds of the quantized products alone, over all calibration inputs. gpu: key of the catalogue. measured:
    how many of the products were measured in both forms; the times of the others are predicted.
    """

    gpu: str
    sixteen_bits_ms: float
    quantized_ms: float
    measured: int


def place(
    model: ir.Model, products: Sequence[Product], cases: Iterable[Mapping[str, int]], bits: int, timing: Timing
) -> tuple[list[Product], list[Refusal], Times]:
    """The products that gain time, those that do not, and the times of the former.

    cases: sizes of the model's symbols, in each of the runs whose times are added. bits: of weights alone, 0 where
    activations are quantized too.
    """
    both = {p.node: (0.0, 0.0) for p in products}
    measured = set(both)
    for sizes in cases:
        shapes = work.shapes_at(model, sizes)
        nodes = {node.name: node for node in model.graph}
        for product in products:
            elements = shapes.elements(nodes[product.node].outputs[0])
            if elements is None:
                continue  # where sizes depend on values, nothing is known
            before, after, known_both = _seconds(product, elements // product.columns, bits, timing)
            both[product.node] = (both[product.node][0] + before, both[product.node][1] + after)
            measured -= set() if known_both else {product.node}
    gain = [p for p in products if both[p.node] == (0.0, 0.0) or both[p.node][1] < both[p.node][0]]
    reason = f"quantizing it gains no time on {timing.gpu.key}"
    refusals = [Refusal(p.node, p.op_type, "", reason) for p in products if p not in gain]
    totals = [round(1e3 * sum(both[p.node][k] for p in gain), 6) for k in range(2)]
    return gain, refusals, Times(timing.gpu.key, totals[0], totals[1], sum(p.node in measured for p in gain))


def _seconds(product: Product, rows: int, bits: int, timing: Timing) -> tuple[float, float, bool]:
    """Of a product in 16 bits and quantized, and whether both were measured."""
    times = [timing.measured.get((dtype, rows, product.columns, product.rows)) for dtype in (_FLOAT, _CODE)]
    if bits == 0 and times[0] is not None and times[1] is not None:
        return 1e-6 * times[0], 1e-6 * times[1], True
    before = [_float_seconds(product, rows)]
    after = _code_seconds(product, rows, timing.gpu) if bits == 0 else _packed_seconds(product, rows, bits)
    return predicted.seconds(before, timing.gpu), predicted.seconds(after, timing.gpu), False


def _float_seconds(product: Product, rows: int) -> Work:
    """Kernels of few rows read their weight, and take no longer for what they multiply."""
    depth, columns = product.rows, product.columns
    flops = 2 * rows * depth * columns if rows > gemm.numbers().max_packed_rows else 0
    return Work(2 * (rows * depth + depth * columns + rows * columns), flops, _FLOAT, rows * columns)


def _code_seconds(product: Product, rows: int, gpu: Gpu) -> list[Work]:
    whole = _float_seconds(product, rows)
    if rows in ROWS_AS_FLOATS or int(gpu.compute_capability.replace(".", "")) < FIRST_ARCH:
        return [whole]
    saved = rows * product.rows + product.rows * product.columns
    return [dataclasses.replace(whole, bytes=whole.bytes - saved, dtype=_CODE)]


def _packed_seconds(product: Product, rows: int, bits: int) -> list[Work]:
    whole, elements = _float_seconds(product, rows), product.rows * product.columns
    codes = elements * bits // 8
    if rows <= gemm.numbers().max_packed_rows:
        return [dataclasses.replace(whole, bytes=whole.bytes - 2 * elements + codes)]
    return [Work(codes + 2 * elements), whole]
