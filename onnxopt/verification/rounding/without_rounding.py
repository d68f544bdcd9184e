"""The original without its own rounding, to hold it and the model under check against (rounding/exactness.py).

A model of 16-bit floats is run in float32 (verification/rounding/widening.py), a quantized one without steps of codes
(rounding/unrounded.py). What a difference means in the same outputs is decided there: two right computations of a
quantized model may take different steps wherever a value lies between two codes, and both are as far from the value.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onnxopt.graph.traits import Traits
from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.compare import LIMITS, QUANTIZED, Array, Difference, Limit
from onnxopt.verification.rounding import unrounded, widening
from onnxopt.verification.rounding.exactness import Float32
from onnxopt.verification.sampling.cases import Case

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class Original(Protocol):
    """The original and its outputs, see verification/reference.py."""

    model: Path
    library: Path | None
    traits: Traits
    provider: str
    folder: Path
    notes: list[str]
    outputs: dict[Case, dict[str, Array]]

    def feeds(self, case: Case, /) -> dict[str, Any]: ...
    def limit(self, name: str, /) -> Limit: ...
    def open(
        self,
        model: Path,
        /,
        *,
        library: Path | None = None,
        optimize: bool = True,
        integer_kernels: bool = True,
        reuse_memory: bool = True,
    ) -> InferenceSession: ...


def decides(difference: Difference, traits: Traits) -> bool:
    """Whether a difference is judged by the original's own rounding.

    Of a quantized model only floats that exceed the limit of float32, which takes another step of a code.
    """
    if difference.excess is None or difference.agreement == 1.0:
        return False
    if traits.precision != QUANTIZED:
        return True
    return "float" in difference.dtype and difference.excess * LIMITS[QUANTIZED] > LIMITS["float32"]


def of(original: Original) -> Float32 | None:
    """The original's outputs without its rounding; None for models that do not round, and where it does not run so."""
    traits = original.traits
    if traits.random or traits.lowered:
        return None
    if traits.is_narrow:
        exact = _widened(original, rounded=False)
        rounded = functools.partial(_widened, original, rounded=True)
        return Float32(exact, original.outputs, rounded, original.limit) if exact else None
    if traits.precision == QUANTIZED:
        exact = _run(original, unrounded.unround, lambda array: array, "not without rounding")
        return Float32(exact, original.outputs, None, original.limit) if exact else None
    return None


def _widened(original: Original, *, rounded: bool) -> dict[Case, dict[str, Array]]:
    """rounded: each result rounded to 16 bits, by ORT without optimizations, which would take that out again."""
    make = functools.partial(widening.widen, rounded=rounded)
    return _run(original, make, widening.widened, "not in float32", optimize=not rounded)


def _run(
    original: Original,
    make: Callable[[Path, Path], Path],
    fed: Callable[[Any], Any],
    otherwise: str,
    *,
    optimize: bool = True,
) -> dict[Case, dict[str, Array]]:
    """The outputs of another form of the original; {} and a note where it cannot be written or run so."""
    outputs: dict[Case, dict[str, Array]] = {}
    try:
        with tempfile.TemporaryDirectory(dir=original.folder) as folder:
            # ONNX Runtime would multiply floats by a weight of codes in integer kernels, which round.
            session = original.open(
                make(original.model, Path(folder)), library=original.library, optimize=optimize, integer_kernels=False
            )
            for case in original.outputs:
                feeds = {name: each(fed, value) for name, value in original.feeds(case).items()}
                outputs[case] = sessions.run(session, feeds)
    except (RunError, widening.NotWidened, unrounded.NotUnrounded) as error:
        original.notes.append(f"{original.provider}: compared with the unchanged original, {otherwise}: {error}")
        return {}
    return outputs


def each(change: Callable[[Any], Any], value: Any) -> Any:
    """An input changed: a tensor, or each tensor of a sequence."""
    return [change(array) for array in value] if isinstance(value, list) else change(value)
