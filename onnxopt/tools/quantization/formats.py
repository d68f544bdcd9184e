"""The formats that `quantize` writes, and what can be asked of each."""

from __future__ import annotations

import dataclasses
import importlib.util
import re

import onnx_ir as ir

from onnxopt.errors import UsageError
from onnxopt.tools.quantization.timing import Timing
from onnxopt.verification.quality import Goals


@dataclasses.dataclass(frozen=True)
class Format:
    """One format of a quantized model.

    bits: of a weight. activations: whether the other operand of a product is quantized too, with scales that are
    calibrated. operators: whose weights are quantized. algorithms: ways to choose scales, the default first. multiple:
    what rows and columns of a weight have to be a multiple of. least: rows and columns from which on it pays.
    least_behind_attention: the same of a product that reads the result of attention, whose codes no kernel stores yet.
    """

    bits: int
    activations: bool
    operators: tuple[str, ...]
    algorithms: tuple[str, ...]
    multiple: int = 1
    least: int = 1
    least_behind_attention: int = 1


_CALIBRATIONS = ("minmax", "entropy", "percentile")
# fp8: what cuBLASLt takes. On an H200 a product of 1024 rows and 768 x 768 takes 4.5 us, in float16 5.4; a kernel that
# stores codes for it takes longer than that saves. Of 512 rows and 2048 x 2048 it is 6.5 and 8.8 us.
FORMATS = {
    "fp8": Format(8, True, ("Gemm", "MatMul"), ("minmax",), multiple=16, least=256, least_behind_attention=2048),
    "int8": Format(8, True, ("Conv", "Gemm", "MatMul"), _CALIBRATIONS),
    "int4": Format(4, False, ("Gemm", "MatMul"), ("rtn", "hqq", "k_quant"), least=64),
    "int8-weights": Format(8, False, ("Gemm", "MatMul"), ("rtn",), least=64),
}
BLOCKS = (16, 32, 64, 128, 256)
_DEFAULT_BLOCK = 32
_LOWER = "float16"


@dataclasses.dataclass(frozen=True)
class Asked:
    """What `quantize` was asked for.

    block: rows of a weight that share a scale, 0 for formats without blocks. zero_points: whether blocks have one.
    exclude: of the names of nodes that stay float32. goals: that every output has to reach.
    precision: of the values that stay floats, None for the model's own. timing: of the GPU to place products for, None
    where times do not count.
    """

    name: str
    format: Format
    algorithm: str
    block: int
    zero_points: bool
    exclude: re.Pattern[str] | None
    goals: Goals
    precision: ir.DataType | None
    timing: Timing | None = None


def asked(
    name: str,
    *,
    algorithm: str | None,
    block_size: int | None,
    zero_points: bool,
    exclude: str | None,
    goals: Goals,
    precision: str | None,
    calibrated: bool,
    timing: Timing | None = None,
) -> Asked:
    """What was asked for. UsageError for values that do not exist, and for options that do not fit together."""
    chosen = FORMATS.get(name)
    if chosen is None:
        raise UsageError(f"format {name!r} is not one of {', '.join(FORMATS)}")
    if algorithm is not None and algorithm not in chosen.algorithms:
        raise UsageError(f"algorithm {algorithm!r} is not one of those for {name}: {', '.join(chosen.algorithms)}")
    if chosen.activations and not calibrated:
        raise UsageError(f"{name} quantizes activations by their ranges: give inputs of the model with --calibrate")
    if chosen.activations and (block_size is not None or zero_points):
        raise UsageError(f"{name} has no blocks of weights; block size and zero points are for int4 and int8-weights")
    if block_size is not None and block_size not in BLOCKS:
        raise UsageError(f"block size {block_size} is not one of {', '.join(map(str, BLOCKS))}")
    algorithm = algorithm or chosen.algorithms[0]
    if algorithm == "hqq" and importlib.util.find_spec("torch") is None:
        raise UsageError("ONNX Runtime's hqq needs PyTorch; install torch, or choose another algorithm")
    if zero_points and algorithm != "rtn":
        raise UsageError(f"zero points are chosen by the algorithm rtn alone, not by {algorithm}")
    if precision is not None and precision != _LOWER:
        raise UsageError(f"precision {precision!r} is not {_LOWER}, the one in which quantizers store values")
    if precision is not None and name == "int8":
        raise UsageError("int8 is multiplied as float32 on CPUs; precision is for fp8, int4 and int8-weights")
    if timing is not None and name == "int8":
        raise UsageError(
            "int8 gains no time on GPUs, where products run in float16; gpu and measured are for the others"
        )
    block = 0 if chosen.activations else block_size or _DEFAULT_BLOCK
    return Asked(
        name,
        chosen,
        algorithm,
        block,
        zero_points,
        _pattern(exclude),
        goals,
        None if precision is None else ir.DataType.FLOAT16,
        timing,
    )


def _pattern(exclude: str | None) -> re.Pattern[str] | None:
    try:
        return None if exclude is None else re.compile(exclude)
    except re.error as error:
        raise UsageError(f"exclude {exclude!r} is no regular expression: {error}") from None
