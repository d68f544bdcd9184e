"""The options of `bench`: a field each, from which its keywords and the command's options are made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from onnxopt.errors import UsageError
from onnxopt.option_fields import option, same_option
from onnxopt.paths import StrPath
from onnxopt.pipeline.options import Options
from onnxopt.runtime import time_limit
from onnxopt.runtime.sessions import provider_named
from onnxopt.tools import bench_trace
from onnxopt.verification.sampling.data_source import DataSource


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """What `bench` times an artifact against, and how long.

    against: a model file or artifact; default the original, if it is still unchanged at the path that it was optimized
    from, else the artifact's own model without the library; the result says which. Dynamic dims without a size in
    shapes are 1 (batch), 128 or 224 (images), if the model accepts that. All of data is compared, the first is timed.
    iterations: default as many as `seconds` allow (7 to 2000). threads: callers that run one session at the same time,
    each with buffers of its own; single runs are timed. profile: a file for a trace of runs of both. footprints:
    whether launches, memory and opening are measured too, which takes each side a process of its own.
    """

    against: StrPath | None = option(None, "Model or artifact to compare with. Default: the original.", of=Path)
    shapes: Mapping[str, tuple[int, ...]] | None = same_option(Options, "shapes")
    data: Sequence[DataSource] = same_option(Options, "data")
    provider: str | None = option(
        None, "Execution provider: cpu, cuda, or ONNX Runtime's name. Default: CUDA where usable, else CPU.",
        value="NAME", of=provider_named,
    )  # fmt: skip
    iterations: int | None = option(None, "Runs of each. Default: what fits in {seconds}.", of=int)
    seconds: float = option(5.0, "Time to spend on runs, at each size. Default: 5.", of=float)
    timeout: float | None = same_option(Options, "timeout")
    profile: StrPath | None = option(
        None, "Write a trace of ten runs of each to this file, for Perfetto.", value="FILE", of=Path
    )
    threads: int = 1
    footprints: bool = True

    def check(self) -> None:
        """UsageError for values that mean nothing."""
        if self.iterations is not None and self.iterations < 1:
            raise UsageError(f"iterations must be 1 or more, not {self.iterations}")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise UsageError(f"seconds must be a number above 0, not {self.seconds:g}")
        if self.threads < 1:
            raise UsageError(f"threads must be 1 or more, not {self.threads}")
        time_limit.check(self.timeout)
        if self.profile is not None:
            bench_trace.check(Path(self.profile))


class BenchChanges(TypedDict, total=False):
    """The fields of `BenchOptions` as keywords, for type checkers; a test compares them."""

    against: StrPath | None
    shapes: Mapping[str, tuple[int, ...]] | None
    data: Sequence[DataSource]
    provider: str | None
    iterations: int | None
    seconds: float
    timeout: float | None
    profile: StrPath | None
    threads: int
    footprints: bool
