"""What a caller may write, and what not: `make check` has mypy check this file as strictly as it can; nothing runs it.

mypy refuses a comment that ignores an error which is not there, so every misuse below is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_type

import onnxopt
from onnxopt import (
    ArtifactError,
    BenchResult,
    CompileError,
    Configuration,
    Finding,
    Manifest,
    ModelError,
    ModelSummary,
    OnnxoptError,
    OptionChange,
    PublicKey,
    SecretKey,
    Session,
    Signature,
    Timing,
    TuneResult,
    UsageError,
    VerificationError,
    VerificationReport,
)


def make(model: Path) -> Manifest:
    artifact = onnxopt.optimize(model, "artifact", shapes={"x": (1, 128)}, archs=["sm_90"], progress=print)
    assert_type(artifact, onnxopt.Artifact)
    assert_type(artifact.path, Path)
    report: VerificationReport = onnxopt.verify(model, artifact.path, providers=["CPUExecutionProvider"])
    assert_type([check.output for check in report.failures], list[str])
    return artifact.manifest


def run(artifact: str) -> list[Any]:
    session = onnxopt.load(artifact, providers=["CPUExecutionProvider", ("CUDAExecutionProvider", {"device_id": 0})])
    assert_type(session, Session)
    assert_type([node.name for node in session.get_inputs()], list[str])
    return session.run(None, {"x": 1.0})


def measure(artifact: str) -> float:
    result: BenchResult = onnxopt.bench(artifact, iterations=5)
    baseline: Timing = result.baseline
    tuned: TuneResult = onnxopt.tune(artifact, budget=60, sign=onnxopt.generate_key())
    changes: Sequence[OptionChange] = tuned.changes
    configuration: Configuration = onnxopt.configuration_for(artifact)
    assert_type(onnxopt.report(artifact, bench=["b.json"]), Path)
    return baseline.p50 + len(changes) + len(configuration.name)


def look(artifact: str, model: str) -> str:
    findings: list[Finding] = onnxopt.examine(artifact)
    summary: ModelSummary = onnxopt.inspect(model)
    return onnxopt.explain(artifact, every_refusal=True) + findings[0].message + str(summary.ops["Add"])


def ship(artifact: str) -> Signature:
    key: SecretKey = onnxopt.read_secret_key("key", "password")
    public: PublicKey = key.public
    assert_type(onnxopt.sign(artifact, key, trusted_comment="release", replace=True), Path)
    assert_type(onnxopt.unpack(onnxopt.pack(artifact, "a.zip"), "folder"), Path)
    assert_type(onnxopt.export_triton(artifact, "repository", max_batch=4), Path)
    assert_type(onnxopt.export_ort_package(artifact, "a.ortpackage"), Path)
    return onnxopt.verify_signature(artifact, public_key=public.to_text())


def fails(artifact: str) -> str:
    try:
        onnxopt.load(artifact)
    except (ArtifactError, CompileError, ModelError, UsageError, VerificationError) as error:
        return str(error)
    except OnnxoptError:
        raise
    return onnxopt.__version__


def misuse() -> None:
    onnxopt.optimise("model.onnx", "artifact")  # type: ignore[attr-defined]
    onnxopt.optimize("model.onnx", "artifact", archs=90)  # type: ignore[arg-type]
    onnxopt.load("artifact").run_fast()  # type: ignore[attr-defined]
    onnxopt.bench("artifact").speedup  # type: ignore[attr-defined]  # noqa: B018
