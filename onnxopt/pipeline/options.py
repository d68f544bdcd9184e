"""The options of `optimize`: a field each, from which its keywords, the command's options and batch files are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict, get_args

from onnxopt.option_fields import option
from onnxopt.paths import StrPath
from onnxopt.verification.lowering.goals import Goals
from onnxopt.verification.sampling.data_source import DataSource

Dtype = Literal["float16", "bfloat16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
SYNONYMS = {"fp16": "float16", "half": "float16", "f16": "float16", "bf16": "bfloat16"}


def dtype_named(name: str | None) -> str | None:
    """The dtype that a name or one of its synonyms stands for; other names as they are."""
    return SYNONYMS.get(name.lower(), name) if isinstance(name, str) else name


@dataclasses.dataclass(frozen=True)
class Options:
    """What `optimize` does besides its defaults.

    shapes: by input ("ids": (8, 128)) or by symbolic dim ("batch": (8,)), to verify at and to choose kernels for; the
    artifact stays dynamic, except in the dims that `fix` names. archs: names, as "sm_90"; none with (). data,
    calibrate: .npz files, or mappings from input name to array. Goals from min_sqnr on are against `reference`, else
    against the model before its lower precision.
    """

    shapes: Mapping[str, tuple[int, ...]] | None = option(
        None, "Size of an input (ids=8x128) or of a dynamic dim (batch=8) to run at; repeat for more.",
        spelled="--shape", also=("--shapes",), value="NAME=DIMS", of=str, many=True, batch=dict[str, int | list[int]],
    )  # fmt: skip
    fix: bool | str | Sequence[str] = option(
        False, "Fix dynamic dims at the size that {shapes} states: all that it names, or those of a list. The artifact "
        "takes these sizes alone.",
        spelled="--fix", value="[NAME,...]", of=str, alone=True, batch=bool | str | list[str],
    )  # fmt: skip
    archs: Sequence[str] | None = option(
        None, "What to compile for: architectures (sm_90), GPUs (h200), `native` for this machine's, `all`, or `none`; "
        "repeat for more. Default: all.",
        spelled="--arch", also=("--archs",), value="NAME,...", of=str, many=True, batch=list[str] | None,
    )  # fmt: skip
    verify: bool = option(
        True,
        "Compare the result with the original before it is written.",
        spelled="--no-verify",
        negative="Keep the result without comparing it with the original.",
        batch=bool,
    )
    timeout: float | None = option(
        None, "How long one run of the original or of its optimized form may take. Default: 30, and 1 for each 10 "
        "MB.",
        value="SECONDS", of=float, batch=float | None,
    )  # fmt: skip
    external_data: bool | None = option(
        None, "Write weights beside the model or into it. Default: beside it above 2 GB.",
        spelled="--external-data/--no-external-data", batch=bool | None,
    )  # fmt: skip
    portable: bool = option(False, "Also write model.portable.onnx, without com.microsoft operators.", batch=bool)
    ort_min: str | None = option(
        None, "Oldest ONNX Runtime that the artifact has to run on, as 1.25. Default: 1.21.", value="VERSION", of=str,
        batch=str | None,
    )  # fmt: skip
    launch_choices: bool = option(False, "Compile other launch shapes too, for `tune` to choose from.", batch=bool)
    cache: StrPath | None = option(
        None, "Folder of compiled kernels. Default: ~/.cache/onnxopt/kernels.", value="PATH", of=Path
    )
    data: Sequence[DataSource] = option(
        (), "Your own inputs by name, as numpy.savez writes them, instead of generated ones; repeat for more.",
        value="FILE.npz", of=Path, many=True, batch=list[str],
    )  # fmt: skip
    emulate: bool = option(
        False, "Run the CUDA kernels on the CPU too, at small sizes, compiled by g++. Takes three minutes at most.",
        batch=bool,
    )  # fmt: skip
    precision: str | None = option(
        None, "Store the values of a float32 model in 16 bits where their ranges allow it. Default: its own precision.",
        of=DTYPES, synonyms=SYNONYMS, batch=str | None,
    )  # fmt: skip
    calibrate: Sequence[DataSource] = option(
        (), "Your own inputs to measure ranges with for {precision}, as for {data}, and to verify with in place of it; "
        "repeat for more. Default: generated.",
        value="FILE.npz", of=Path, many=True, batch=list[str],
    )  # fmt: skip
    keep_float: str | None = option(
        None, "Names of nodes that stay float32 with {precision}.", value="REGEX", of=str, batch=str | None
    )
    caches: bool = option(
        False, "With {precision}: the inputs and outputs that are a decoder's cache become 16 bit too.", batch=bool
    )
    reference: StrPath | None = option(
        None, "The float32 model that a quantized one was made from: also says how near the artifact is to it, on "
        "{data}.",
        value="MODEL", of=Path, batch=str | None,
    )  # fmt: skip
    min_sqnr: float | None = option(
        None, "Signal to noise that every output has to keep, in dB.", value="DB", of=float, batch=float | None
    )
    min_cosine: float | None = option(
        None, "Cosine that every output has to keep.", value="COSINE", of=float, batch=float | None
    )
    min_top1: float | None = option(
        None, "Share of rows that keep their greatest element.", value="SHARE", of=float, batch=float | None
    )
    min_top5: float | None = option(
        None, "Share of rows whose greatest element stays among the five.", value="SHARE", of=float,
        batch=float | None,
    )  # fmt: skip
    max_kl: float | None = option(
        None, "Divergence of the rows' softmax, at most.", value="NATS", of=float, batch=float | None
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", dtype_named(self.precision))

    @property
    def goals(self) -> Goals:
        """What every output has to keep against float32. UsageError for values that mean nothing."""
        return Goals(self.min_sqnr, self.min_cosine, self.min_top1, self.min_top5, self.max_kl)


class OptionChanges(TypedDict, total=False):
    """The fields of `Options` as keywords, for type checkers; a test compares them."""

    shapes: Mapping[str, tuple[int, ...]] | None
    fix: bool | str | Sequence[str]
    archs: Sequence[str] | None
    verify: bool
    timeout: float | None
    external_data: bool | None
    portable: bool
    ort_min: str | None
    launch_choices: bool
    cache: StrPath | None
    data: Sequence[DataSource]
    emulate: bool
    precision: str | None
    calibrate: Sequence[DataSource]
    keep_float: str | None
    caches: bool
    reference: StrPath | None
    min_sqnr: float | None
    min_cosine: float | None
    min_top1: float | None
    min_top5: float | None
    max_kl: float | None
