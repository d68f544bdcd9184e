"""Artifacts on older releases of ONNX Runtime: each release in a folder of its own, each run in a process of its own.

`python -m tests.compat --ort 1.21.1 bert_tiny_dyn` runs one model; test_releases.py runs the small ones under pytest.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

from models.reference import Reference
from onnxopt.runtime.releases import TRIED

ROOT = pathlib.Path(__file__).resolve().parents[2]
RELEASES = TRIED
_RUNNER = pathlib.Path(__file__).with_name("runner.py")
_CACHE = ROOT / ".cache" / "ort"


class CannotInstall(Exception):
    """pip has no wheel of this release for this Python, or cannot be reached."""


def install(release: str) -> pathlib.Path:
    """The folder of this release's CPU wheel, installed there by pip on first use. Raises CannotInstall."""
    folder = _CACHE / release
    if not (folder / "onnxruntime").is_dir():
        _CACHE.mkdir(parents=True, exist_ok=True)
        part = pathlib.Path(tempfile.mkdtemp(dir=_CACHE, prefix=f".{release}."))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--target", str(part), f"onnxruntime=={release}"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            shutil.rmtree(part)
            errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["pip said nothing"]
            raise CannotInstall(f"onnxruntime {release}: {errors[-1]}")
        try:
            part.rename(folder)
        except OSError:  # a parallel test worker was faster
            shutil.rmtree(part)
    return folder


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One artifact on one release, with the library or without it.

    worst: largest difference as a multiple of what is allowed, None where it did not run. error: why it did not.
    """

    release: str
    model: str
    library: bool
    worst: float | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.worst is not None and self.worst <= 1.0

    def __str__(self) -> str:
        how = "with the library" if self.library else "without it"
        what = self.error if self.worst is None else f"{self.worst:.4f} of the limit"
        return f"{'ok' if self.ok else 'FAILED':7}onnxruntime {self.release:8}{self.model}, {how}: {what}"


def run(release: str, artifact: pathlib.Path, reference: Reference) -> list[Outcome]:
    """Load and run the artifact on a release with the library (where it has one) and without, and compare."""
    path = install(release)
    libraries = [None, *(artifact / "lib").glob("libonnxopt_ops.so")]
    return [_run(release, path, artifact / "model.onnx", library, reference) for library in libraries]


def _run(
    release: str, path: pathlib.Path, model: pathlib.Path, library: pathlib.Path | None, reference: Reference
) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        feeds, found = pathlib.Path(folder) / "feeds.npz", pathlib.Path(folder) / "outputs.npz"
        # npz cannot hold an entry named like a path, and input names may be anything
        np.savez(feeds, **{f"input{k}": v for k, v in enumerate(reference.feeds.values())})
        job = {
            "release": release,
            "model": str(model.resolve()),
            "library": str(library.resolve()) if library else None,
            "inputs": list(reference.feeds),
            "feeds": str(feeds),
            "outputs": str(found),
        }
        # -s and PYTHONPATH: this release and this environment's numpy, nothing of the user's or of this folder
        command = [sys.executable, "-s", str(_RUNNER), json.dumps(job)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ONNXOPT_")} | {"PYTHONPATH": str(path)}
        result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
        label = (release, reference.name, library is not None)
        if result.returncode or not found.exists():
            lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no message"]
            return Outcome(*label, error=f"exit code {result.returncode}: {lines[-1][:400]}")
        with np.load(found) as outputs:
            arrays = [outputs[f"output{k}"] for k in range(len(outputs.files))]
    return Outcome(*label, worst=reference.worst(arrays))
