"""The names of onnxopt itself: all are there, none costs anything before it is used, and all of them are typed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onnxopt

PACKAGE = Path(onnxopt.__file__).parent
# What a caller may write; assert_type and the arguments' types are checked by mypy, nothing is run.
USE = """
from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_type

import onnxopt
from onnxopt import (
    ArtifactError, BenchResult, CompileError, Configuration, Finding, Manifest, ModelError, ModelSummary, OnnxoptError,
    OptionChange, PublicKey, SecretKey, Session, Signature, Timing, TuneResult, UsageError, VerificationError,
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
"""
MISUSE = """
import onnxopt

onnxopt.optimise("model.onnx", "artifact")
onnxopt.optimize("model.onnx", "artifact", archs=90)
onnxopt.load("artifact").run_fast()
onnxopt.bench("artifact").speedup
"""


def test_every_name_is_there() -> None:
    for name in onnxopt.__all__:
        assert getattr(onnxopt, name) is not None
    assert dir(onnxopt) == sorted(onnxopt.__all__)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        onnxopt.optimise  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_see_what_is_imported() -> None:
    """The imports for type checkers and the table of modules name the same things, and `__all__` has them all."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == {name: f"onnxopt.{module}" for name, module in onnxopt._MODULES.items()}
    errors = {name for name in onnxopt.__all__ if name.endswith("Error")}
    assert sorted({*typed, *errors, "__version__"}) == sorted(onnxopt.__all__)


def test_no_module_hides_a_name() -> None:
    """Importing onnxopt.x sets the attribute x of the package, in place of what was there."""
    assert not {path.stem for path in PACKAGE.iterdir()} & set(onnxopt.__all__)


def test_importing_onnxopt_imports_nothing_heavy() -> None:
    command = [sys.executable, "-c", "import sys, onnxopt; print(*sys.modules)"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()
    assert "onnxopt" in loaded
    assert not {"click", "numpy", "onnx", "onnx_ir", "onnxruntime", "pydantic", "sympy"} & set(loaded)


@pytest.mark.slow
def test_a_caller_passes_mypy_strict(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(USE)
    (tmp_path / "misuse.py").write_text(MISUSE)
    options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}"]
    command = [sys.executable, "-m", "mypy", *options, "use.py", "misuse.py"]
    environment = {**os.environ, "MYPYPATH": str(PACKAGE.parent)}
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    lines = checked.stdout.splitlines()
    assert [line for line in lines if "misuse.py" not in line][:-1] == [], checked.stdout
    assert [line.split(":")[1] for line in lines if "misuse.py" in line and "error" in line] == ["4", "5", "6", "7"]
