"""The formats that `quantize` writes."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Format:
    """One format of a quantized model.

    bits: of a weight. activations: whether the other operand of a product is quantized too, with scales that are
    calibrated. operators: whose weights are quantized. algorithms: ways to choose scales, the default first. multiple:
    what rows and columns of a weight have to be a multiple of. min_side: rows and columns from which on it pays.
    min_after_attention: the same of a product that reads the result of attention, whose codes no kernel stores yet.
    """

    bits: int
    activations: bool
    operators: tuple[str, ...]
    algorithms: tuple[str, ...]
    multiple: int = 1
    min_side: int = 1
    min_after_attention: int = 1


_CALIBRATIONS = ("minmax", "entropy", "percentile")
# fp8: what cuBLASLt takes. On an H200 a product of 1024 rows and 768 x 768 takes 4.5 us, in float16 5.4; a kernel that
# stores codes for it takes longer than that saves. Of 512 rows and 2048 x 2048 it is 6.5 and 8.8 us.
FORMATS = {
    "fp8": Format(8, True, ("Gemm", "MatMul"), ("minmax",), multiple=16, min_side=256, min_after_attention=2048),
    "int8": Format(8, True, ("Conv", "Gemm", "MatMul"), _CALIBRATIONS),
    "int4": Format(4, False, ("Gemm", "MatMul"), ("rtn", "hqq", "k_quant"), min_side=64),
    "int8-weights": Format(8, False, ("Gemm", "MatMul"), ("rtn",), min_side=64),
}
