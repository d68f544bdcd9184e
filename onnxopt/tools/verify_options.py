"""The options of `verify`: a field each, from which its keywords and the command's options are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypedDict

from onnxopt.option_fields import option, same_option
from onnxopt.pipeline.options import Options
from onnxopt.runtime.sessions import provider_named
from onnxopt.verification.sampling.data_source import DataSource


@dataclasses.dataclass(frozen=True)
class VerifyOptions:
    """What `verify` runs two models on.

    seconds: how long the original may run on a provider before no more cases are added. emulate: each kernel alone.
    record: complete the verification in the manifest and the report of the artifact, an unsigned folder, which must
    have been made from the original.
    """

    shapes: Mapping[str, tuple[int, ...]] | None = same_option(Options, "shapes")
    data: Sequence[DataSource] = same_option(Options, "data")
    providers: Sequence[str] | None = option(
        None, "Execution provider: cpu, cuda, or ONNX Runtime's name; repeat for more. Default: CPU, and CUDA where "
        "usable.",
        spelled="--provider", value="NAME", of=provider_named, many=True,
    )  # fmt: skip
    emulate: bool = same_option(Options, "emulate")
    timeout: float | None = same_option(Options, "timeout")
    seconds: float = 1.0
    record: bool = False


class VerifyChanges(TypedDict, total=False):
    """The fields of `VerifyOptions` as keywords, for type checkers; a test compares them."""

    shapes: Mapping[str, tuple[int, ...]] | None
    data: Sequence[DataSource]
    providers: Sequence[str] | None
    emulate: bool
    timeout: float | None
    seconds: float
    record: bool
