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
    """What tune did. file: below the artifact. complete: whether everything was tried.

    comparisons: by mode ("plain", "cuda_graph"), the rule-made file against the one now written, in milliseconds.
    resumed: trials that an earlier, unfinished run had made. kernels: what was measured to be faster than the library's
    own choice, by option of the configuration's section `kernels`. notes: what a reader should know.
    """

    file: str
    provider: str
    device: str
    case: str
    status: str  # "faster", "unchanged", "interrupted"
    complete: bool
    changes: tuple[OptionChange, ...]
    comparisons: dict[str, Comparison]
    noise: float | None
    trials: int
    resumed: int
    seconds: float
    kernels: dict[str, list[dict[str, Any]]]
    notes: tuple[str, ...]
