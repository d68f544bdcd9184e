"""What a user reads where ONNX Runtime does not run the original, and the exit code: the same in every command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from onnxopt.errors import ModelError, NotVerifiedError
from onnxopt.graph import read
from onnxopt.runtime import releases
from onnxopt.verification.reference import NotRunnable, Refused


@contextlib.contextmanager
def original_runs(
    original: read.Source | Path, cannot: str = "does not run here", advice: str = "", unchecked: str = ""
) -> Iterator[None]:
    """Turn NotRunnable of a block that runs the original into errors for users.

    ModelError, code 2, where ONNX Runtime opens the original nowhere: other inputs do not help. NotVerifiedError, code
    3, where it does not run it here. cannot: what cannot be done then. advice: what to do then. unchecked: what to do
    where it does not open it.
    """
    try:
        yield
    except Refused as error:
        also = f"; {unchecked}" if unchecked else ""
        raise ModelError(
            f"{original}: ONNX Runtime does not open the original: {_why(original) or error}{also}"
        ) from error
    except NotRunnable as error:
        also = f". {advice}" if advice else ""
        raise NotVerifiedError(f"{original}: {cannot}: {error}{also}") from error


def _why(original: read.Source | Path) -> str | None:
    """What the installed ONNX Runtime is too old for; None where that is not known."""
    import onnxruntime as ort

    return releases.too_new(original.model, ort.__version__) if isinstance(original, read.Source) else None
