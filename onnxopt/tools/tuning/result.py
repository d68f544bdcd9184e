"""What tune returns."""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.tools.tuning.rounds import Comparison


@dataclasses.dataclass(frozen=True)
class OptionChange:
    """An option that tune changed. before, after: None where ONNX Runtime's default is meant. ratio: before over after
    in time, None where the option was not measured alone.
    """

    option: str
    before: Any
    after: Any
    ratio: float | None


@dataclasses.dataclass(frozen=True)
class TuneResult:
    """The result of tune. file: written, relative to the artifact. complete: whether every option was tried.

    status: "faster", "unchanged" (the rule-made options stay) or "interrupted". comparisons: by mode ("plain",
    "cuda_graph"), the rule-made file against the one now written, in milliseconds. trials: measured options; resumed:
    of these, the ones of an earlier, unfinished run. kernels: entries measured to be faster than the library's own
    choice, by option of the configuration's section `kernels`. notes: for the user.
    """

    file: str
    provider: str
    device: str
    case: str
    status: str
    complete: bool
    changes: tuple[OptionChange, ...]
    comparisons: dict[str, Comparison]
    noise: float | None
    trials: int
    resumed: int
    seconds: float
    kernels: dict[str, list[dict[str, Any]]]
    notes: tuple[str, ...]
