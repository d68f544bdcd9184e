"""The errors that onnxopt's public functions raise. Each message says what is wrong, where, and what to do next."""

from __future__ import annotations


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
