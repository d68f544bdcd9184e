"""What `quantize` was asked for: its options, checked."""

from __future__ import annotations

import dataclasses
import importlib.util
import re

import onnx_ir as ir

from onnxopt.errors import UsageError
from onnxopt.option_fields import not_one_of
from onnxopt.tools.quantization.formats import FORMATS, Format
from onnxopt.tools.quantization.options import Quantization
from onnxopt.tools.quantization.timing import Timing, timing
from onnxopt.verification.lowering.goals import Goals

BLOCKS = (16, 32, 64, 128, 256)
_DEFAULT_BLOCK = 32
_LOWER = "float16"


@dataclasses.dataclass(frozen=True)
class Asked:
    """What `quantize` was asked for.

    block: rows of a weight that share a scale, 0 for formats without blocks. zero_points: whether blocks have one.
    keep_float: of the names of nodes that stay float32. goals: that every output has to reach.
    precision: of the values that stay floats, None for the model's own. timing: of the GPU to place products for, None
    where times do not count.
    """

    name: str
    format: Format
    algorithm: str
    block: int
    zero_points: bool
    keep_float: re.Pattern[str] | None
    goals: Goals
    precision: ir.DataType | None
    timing: Timing | None = None


def asked(options: Quantization) -> Asked:
    """What was asked for. UsageError for values that do not exist, and for options that do not fit together."""
    name, block_size, lower = options.format, options.block_size, options.precision
    times = timing(options.gpu, options.measured)
    chosen = FORMATS.get(name)
    if chosen is None:
        raise UsageError(f"format {not_one_of(name, FORMATS)}")
    if options.algorithm is not None and options.algorithm not in chosen.algorithms:
        names = ", ".join(chosen.algorithms)
        raise UsageError(f"algorithm {options.algorithm!r} is not one of those for {name}: {names}")
    if chosen.activations and not options.calibrate:
        raise UsageError(f"{name} quantizes activations by their ranges: give inputs of the model with --calibrate")
    if chosen.activations and (block_size is not None or options.zero_points):
        raise UsageError(f"{name} has no blocks of weights; block size and zero points are for int4 and int8-weights")
    if block_size is not None and block_size not in BLOCKS:
        raise UsageError(f"block size {block_size} is not one of {', '.join(map(str, BLOCKS))}")
    algorithm = options.algorithm or chosen.algorithms[0]
    if algorithm == "hqq" and importlib.util.find_spec("torch") is None:
        raise UsageError("ONNX Runtime's hqq needs PyTorch; install torch, or choose another algorithm")
    if options.zero_points and algorithm != "rtn":
        raise UsageError(f"zero points are chosen by the algorithm rtn alone, not by {algorithm}")
    if lower is not None and lower != _LOWER:
        raise UsageError(f"precision {lower!r} is not {_LOWER}, the one in which quantizers store values")
    if lower is not None and name == "int8":
        raise UsageError("int8 is multiplied as float32 on CPUs; precision is for fp8, int4 and int8-weights")
    if times is not None and name == "int8":
        raise UsageError(
            "int8 gains no time on GPUs, where products run in float16; gpu and measured are for the others"
        )
    block = 0 if chosen.activations else block_size or _DEFAULT_BLOCK
    return Asked(
        name,
        chosen,
        algorithm,
        block,
        options.zero_points,
        _pattern(options.keep_float),
        options.goals,
        None if lower is None else ir.DataType.FLOAT16,
        times,
    )


def _pattern(keep_float: str | None) -> re.Pattern[str] | None:
    try:
        return None if keep_float is None else re.compile(keep_float)
    except re.error as error:
        raise UsageError(f"keep_float {keep_float!r} is no regular expression: {error}") from None
