"""16-bit values around what is quantized, as `optimize --precision` chooses them."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from onnxopt.errors import NotVerifiedError
from onnxopt.graph import normalize, read, rewrite, write
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.lowering import narrowing
from onnxopt.verification.reference import Reference
from onnxopt.verification.rounding.widening import NotWidened


def lowered(normalized: ir.Model, original: Reference, dtype: ir.DataType, folder: Path) -> Path:
    """A model file in `folder` that stores values in 16 bits where their ranges allow it.

    normalized: a model that computes what `original` does; it stays as it is. Ranges are measured with the original's
    inputs. NotVerifiedError where ONNX Runtime does not run it with all its values as outputs.
    """
    model = normalized.clone()
    rewrite.prepare_float32(model)
    try:
        narrowed = narrowing.narrow(model, original, dtype, folder)
    except (RunError, NotWidened) as error:
        raise NotVerifiedError(f"ranges for {dtype.name.lower()} cannot be measured: {error}") from error
    return narrowed.folder / write.MODEL_FILE


def normalized_file(path: Path) -> ir.Model:
    """A model file that was lowered or quantized, normalized."""
    return normalize.normalize(read.load(path).model).model
