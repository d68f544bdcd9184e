"""The errors that onnxopt's public functions raise. Each message says what is wrong, where, and what to do next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class OnnxoptError(Exception):
    """Base of every error that onnxopt raises on purpose. The command prints its message and exits with `exit_code`."""

    exit_code = 2


class ModelError(OnnxoptError):
    """The input cannot be read as a model: missing, truncated, not ONNX, invalid, or reaching outside its folder."""


class UsageError(OnnxoptError):
    """An option, shape, architecture or output path that cannot be used."""


class CompileError(OnnxoptError):
    """Generated CUDA source did not compile, or the compiler is not installed."""


class ArtifactError(OnnxoptError):
    """An artifact that is incomplete, damaged or written by an incompatible version."""


class VerificationError(OnnxoptError):
    """The optimized model does not agree with the original, also not without the fusions that disagree."""


class NotVerifiedError(VerificationError):
    """The optimized model could not be compared with the original. The command exits with code 3."""

    exit_code = 3


class DisagreementError(VerificationError):
    """A model of lower precision is farther from float32 than was asked for. The command exits with code 1."""

    exit_code = 1


class StepError(ModelError):
    """A step failed in a way that has no error of its own; the message names the step, and the cause is chained."""


@contextlib.contextmanager
def step(title: str, *passing: type[Exception]) -> Iterator[None]:
    """Turn whatever a library raises while the block runs into a StepError that names the step and the node.

    title: what the step does, for the message. passing: exceptions that the caller handles. Errors raised on purpose
    stay as they are, and so does OSError: the folder that cannot be written is known where it was opened.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (OnnxoptError, OSError, *passing)):
            raise
        raise StepError(f"{title} failed{_where(error)}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """One line that says what an exception of any library means: the class of its cause, and the first line of that."""
    if isinstance(error, RecursionError):
        return "the model is nested too deeply"
    while error.__cause__ is not None:
        error = error.__cause__
    line = first_line(error)
    if isinstance(error, MemoryError):
        return f"there is not enough memory ({line})"
    return line if line == type(error).__name__ else f"{type(error).__name__}: {line}"


def first_line(error: BaseException) -> str:
    """The first line of an exception's message that says something, else the name of its class."""
    lines = [line.strip() for line in _message(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a message of bytes that are not UTF-8
        return ""


def _where(error: Exception) -> str:
    """The node that an exception names by an attribute `node`, as " at node `name` (Operator)"; else ""."""
    node = getattr(error, "node", None)
    return f" at node `{node.name}` ({node.op_type})" if node is not None and hasattr(node, "op_type") else ""
