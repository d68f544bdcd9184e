"""onnxopt makes ONNX models faster: chains of operators become precompiled kernels, and the result is still ONNX.

    artifact = onnxopt.optimize("model.onnx", "model.optimized")
    session = onnxopt.load("model.optimized")        # an ordinary onnxruntime.InferenceSession

Everything is imported on first use, so that `import onnxopt` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onnxopt.errors import ArtifactError, CompileError, ModelError, OnnxoptError, UsageError, VerificationError

if TYPE_CHECKING:
    from onnxopt.artifact.report.making import report
    from onnxopt.artifact.session import load
    from onnxopt.pipeline import Artifact, optimize
    from onnxopt.tools.bench import bench
    from onnxopt.tools.doctor import examine
    from onnxopt.tools.explain import explain
    from onnxopt.tools.inspect import inspect
    from onnxopt.tools.tuning import tune
    from onnxopt.verification.verify import verify

    __version__: str

# Modules are not named like the functions they hold: importing onnxopt.x sets the attribute x of this package.
_WHERE = {
    "Artifact": "pipeline",
    "bench": "tools.bench",
    "examine": "tools.doctor",
    "explain": "tools.explain",
    "inspect": "tools.inspect",
    "load": "artifact.session",
    "optimize": "pipeline",
    "report": "artifact.report.making",
    "tune": "tools.tuning",
    "verify": "verification.verify",
}

__all__ = [
    "Artifact",
    "ArtifactError",
    "CompileError",
    "ModelError",
    "OnnxoptError",
    "UsageError",
    "VerificationError",
    "__version__",
    "bench",
    "examine",
    "explain",
    "inspect",
    "load",
    "optimize",
    "report",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from onnxopt import versions

        return versions.onnxopt()
    if name in _WHERE:
        return getattr(importlib.import_module(f"onnxopt.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'onnxopt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
