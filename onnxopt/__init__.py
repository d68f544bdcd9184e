"""onnxopt makes ONNX models faster: chains of operators become precompiled kernels, and the result is still ONNX.

    artifact = onnxopt.optimize("model.onnx", "model.optimized")
    session = onnxopt.load("model.optimized")        # an ordinary onnxruntime.InferenceSession

Everything in `__all__` is imported on first use, so that `import onnxopt` is fast. The modules of these names may move.
In signatures, StrPath is str | os.PathLike[str]: a path, or an Artifact, which means its folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxopt import onnxruntime_package
from onnxopt.errors import (
    ArtifactError,
    CompileError,
    DisagreementError,
    ModelError,
    NotVerifiedError,
    OnnxoptError,
    UsageError,
    VerificationError,
)
from onnxopt.imports import imported

onnxruntime_package.require_one()

if TYPE_CHECKING:  # the same as below, for type checkers
    __version__: str
    from onnxopt.artifact.archive import pack, unpack
    from onnxopt.artifact.export.ort_package import export_ort_package
    from onnxopt.artifact.export.triton import export_triton
    from onnxopt.artifact.export.triton_options import TritonOptions
    from onnxopt.artifact.manifest import Manifest
    from onnxopt.artifact.measurement import BenchResult, Timing
    from onnxopt.artifact.minisign import PublicKey, SecretKey, generate_key, read_secret_key
    from onnxopt.artifact.open import Signature, verify_signature
    from onnxopt.artifact.result import Result
    from onnxopt.artifact.session import load
    from onnxopt.artifact.signing import sign
    from onnxopt.paths import get_include
    from onnxopt.pipeline.flow import optimize
    from onnxopt.pipeline.making import Artifact
    from onnxopt.pipeline.options import Options
    from onnxopt.runtime.configuration import Configuration, configuration_for
    from onnxopt.runtime.sessions import Session
    from onnxopt.tools.add_arch import AddedArchs, add_arch
    from onnxopt.tools.batching import BatchResult, FusionCounts, MeasuredTimes, ModelOutcome, batch
    from onnxopt.tools.bench import bench
    from onnxopt.tools.bench_options import BenchOptions
    from onnxopt.tools.compiled import Compiled, compile
    from onnxopt.tools.doctor import Finding, examine
    from onnxopt.tools.explain import explain
    from onnxopt.tools.folders import FolderModel, OptimizedFolder, optimize_folder
    from onnxopt.tools.inspect import ModelSummary, inspect
    from onnxopt.tools.quality import quality
    from onnxopt.tools.quantization import Quantization, Quantized, quantize
    from onnxopt.tools.refitting.flow import refit
    from onnxopt.tools.refitting.options import RefitOptions
    from onnxopt.tools.report import report
    from onnxopt.tools.tuning import OptionChange, TuneResult, tune
    from onnxopt.tools.verify import verify
    from onnxopt.tools.verify_options import VerifyOptions
    from onnxopt.verification.lowering.goals import Quality
    from onnxopt.verification.verify import VerificationReport

# The module of each name. No module directly in onnxopt/ is named like one of them: importing onnxopt.x sets the
# attribute x of this package.
_MODULES = {
    "AddedArchs": "tools.add_arch",
    "Artifact": "pipeline.making",
    "BatchResult": "tools.batching",
    "BenchOptions": "tools.bench_options",
    "BenchResult": "artifact.measurement",
    "Compiled": "tools.compiled",
    "Configuration": "runtime.configuration",
    "Finding": "tools.doctor",
    "FolderModel": "tools.folders",
    "FusionCounts": "tools.batching",
    "Manifest": "artifact.manifest",
    "MeasuredTimes": "tools.batching",
    "ModelOutcome": "tools.batching",
    "ModelSummary": "tools.inspect",
    "OptimizedFolder": "tools.folders",
    "OptionChange": "tools.tuning",
    "PublicKey": "artifact.minisign",
    "Quality": "verification.lowering.goals",
    "Quantization": "tools.quantization",
    "Quantized": "tools.quantization",
    "Result": "artifact.result",
    "SecretKey": "artifact.minisign",
    "Session": "runtime.sessions",
    "Signature": "artifact.open",
    "Timing": "artifact.measurement",
    "TritonOptions": "artifact.export.triton_options",
    "TuneResult": "tools.tuning",
    "VerificationReport": "verification.verify",
    "VerifyOptions": "tools.verify_options",
    "add_arch": "tools.add_arch",
    "batch": "tools.batching",
    "bench": "tools.bench",
    "compile": "tools.compiled",
    "configuration_for": "runtime.configuration",
    "examine": "tools.doctor",
    "explain": "tools.explain",
    "export_ort_package": "artifact.export.ort_package",
    "export_triton": "artifact.export.triton",
    "generate_key": "artifact.minisign",
    "get_include": "paths",
    "inspect": "tools.inspect",
    "load": "artifact.session",
    "Options": "pipeline.options",
    "optimize": "pipeline.flow",
    "optimize_folder": "tools.folders",
    "pack": "artifact.archive",
    "quality": "tools.quality",
    "quantize": "tools.quantization",
    "read_secret_key": "artifact.minisign",
    "RefitOptions": "tools.refitting.options",
    "refit": "tools.refitting.flow",
    "report": "tools.report",
    "sign": "artifact.signing",
    "tune": "tools.tuning",
    "unpack": "artifact.archive",
    "verify": "tools.verify",
    "verify_signature": "artifact.open",
}

__all__ = [
    "AddedArchs",
    "Artifact",
    "ArtifactError",
    "BatchResult",
    "BenchOptions",
    "BenchResult",
    "CompileError",
    "Compiled",
    "Configuration",
    "DisagreementError",
    "Finding",
    "FolderModel",
    "FusionCounts",
    "Manifest",
    "MeasuredTimes",
    "ModelError",
    "ModelOutcome",
    "ModelSummary",
    "NotVerifiedError",
    "OnnxoptError",
    "OptimizedFolder",
    "OptionChange",
    "Options",
    "PublicKey",
    "Quality",
    "Quantization",
    "Quantized",
    "RefitOptions",
    "Result",
    "SecretKey",
    "Session",
    "Signature",
    "Timing",
    "TritonOptions",
    "TuneResult",
    "UsageError",
    "VerificationError",
    "VerificationReport",
    "VerifyOptions",
    "__version__",
    "add_arch",
    "batch",
    "bench",
    "compile",
    "configuration_for",
    "examine",
    "explain",
    "export_ort_package",
    "export_triton",
    "generate_key",
    "get_include",
    "inspect",
    "load",
    "optimize",
    "optimize_folder",
    "pack",
    "quality",
    "quantize",
    "read_secret_key",
    "refit",
    "report",
    "sign",
    "tune",
    "unpack",
    "verify",
    "verify_signature",
]

if not TYPE_CHECKING:  # a type checker would take any attribute for one that exists

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return imported("onnxopt.versions").onnxopt()
        if name in _MODULES:
            return getattr(imported(f"onnxopt.{_MODULES[name]}"), name)
        raise AttributeError(f"module 'onnxopt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
