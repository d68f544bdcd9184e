"""The options of `quantize`: a field each, from which its keywords and the command's options are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from onnxopt.option_fields import option, same_option
from onnxopt.paths import StrPath
from onnxopt.pipeline.options import SYNONYMS, Options, dtype_named
from onnxopt.tools.quantization.formats import FORMATS
from onnxopt.verification.lowering.goals import Goals
from onnxopt.verification.sampling.data_source import DataSource

_ALGORITHMS = tuple(sorted({name for row in FORMATS.values() for name in row.algorithms}))


@dataclasses.dataclass(frozen=True)
class Quantization:
    """How `quantize` quantizes.

    format: "fp8" (e4m3 weights and activations, a scale a tensor; also of float16 models), "int8" (weights with a scale
    a column, activations with a scale a tensor), "int4" or "int8-weights" (weights alone, in blocks). algorithm: how
    scales are chosen; "minmax", "entropy" or "percentile" of activations, "rtn", "hqq" or "k_quant" of 4-bit weights.
    block_size: 16 to 256. Where outputs miss what they have to keep, nodes stay float32, up to half of them.
    """

    format: str = option(
        "",
        "fp8, int8: weights and activations. int4, int8-weights: weights alone, in blocks.",
        of=tuple(FORMATS),
        required=True,
    )
    calibrate: Sequence[DataSource] = option(
        (), "Your own inputs by name, as numpy.savez writes them: ranges of activations and quality; repeat for more.",
        value="FILE.npz", of=Path, many=True,
    )  # fmt: skip
    algorithm: str | None = option(
        None, "How scales are chosen. Default: minmax for fp8 and int8, rtn for weights alone.", of=_ALGORITHMS
    )
    block_size: int | None = option(
        None, "Rows of a weight that share a scale, for weights alone. Default: 32.", of=int
    )
    zero_points: bool = option(False, "Give every block of weights a zero point.")
    keep_float: str | None = option(
        None, "Names of nodes that stay float32.", also=("--exclude",), value="REGEX", of=str
    )
    precision: str | None = option(
        None, "Store the other values of a float32 model in 16 bits where their ranges allow it. Not for int8.",
        of=("float16",), synonyms=SYNONYMS,
    )  # fmt: skip
    gpu: str | None = option(
        None, "GPU of the catalogue, as h200: products that gain no time there are not quantized. Not for int8.",
        value="NAME", of=str,
    )  # fmt: skip
    measured: Sequence[StrPath] = option(
        (), "Products that tune measured (*.gemm_algos.json), whose times count, not predicted ones; repeat for more.",
        value="FILE", of=Path, many=True,
    )  # fmt: skip
    min_sqnr: float | None = same_option(Options, "min_sqnr")
    min_cosine: float | None = same_option(Options, "min_cosine")
    min_top1: float | None = same_option(Options, "min_top1")
    min_top5: float | None = same_option(Options, "min_top5")
    max_kl: float | None = same_option(Options, "max_kl")
    shapes: Mapping[str, tuple[int, ...]] | None = same_option(Options, "shapes")
    timeout: float | None = same_option(Options, "timeout")

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", dtype_named(self.precision))

    @property
    def goals(self) -> Goals:
        """What every output has to keep against float32. UsageError for values that mean nothing."""
        return Goals(self.min_sqnr, self.min_cosine, self.min_top1, self.min_top5, self.max_kl)


class QuantizationChanges(TypedDict, total=False):
    """The fields of `Quantization` as keywords, for type checkers; a test compares them."""

    format: str
    calibrate: Sequence[DataSource]
    algorithm: str | None
    block_size: int | None
    zero_points: bool
    keep_float: str | None
    precision: str | None
    gpu: str | None
    measured: Sequence[StrPath]
    min_sqnr: float | None
    min_cosine: float | None
    min_top1: float | None
    min_top5: float | None
    max_kl: float | None
    shapes: Mapping[str, tuple[int, ...]] | None
    timeout: float | None
