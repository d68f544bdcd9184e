"""A fused model in ONNX Runtime with the library, which chooses and launches as on a GPU; g++ made the kernels."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json
from onnxopt.fusion.region import Kernel
from onnxopt.verification.emulation import gcc
from tests.support import emulated
from tests.support.custom_ops_fake_driver import fatbin

_COMPILE_SECONDS = 300.0


def run(
    folder: Path,
    optimized: onnx.ModelProto,
    kernels: Sequence[Kernel],
    feeds: Sequence[dict[str, np.ndarray]],
    major: int = 8,
) -> tuple[list[dict[str, np.ndarray]], set[str]]:
    """What the model gives for each of the feeds, in a session each, and the entry points that were launched.

    folder: a new one. major: of the GPU's compute capability, 8 or 9. AssertionError where a run fails.
    """
    library, environment = prepared(folder, optimized, kernels, major)
    (folder / "jobs").write_bytes(pickle.dumps((library, [(folder / "model.onnx", list(feeds))])))
    command = [sys.executable, "-m", "onnxopt.verification.emulation.run", str(folder), "0"]
    subprocess.run(command, env=environment, check=True, timeout=300)
    results = [pickle.loads((folder / f"0.{k}").read_bytes()) for k in range(len(feeds))]
    assert not [r for r in results if isinstance(r, str)], results
    return results, set((folder / "launched").read_text().split())


def prepared(
    folder: Path, optimized: onnx.ModelProto, kernels: Sequence[Kernel], major: int = 8
) -> tuple[Path, dict[str, str]]:
    """The library of a model.onnx in the folder, a new one, and the variables of processes in which it finds a GPU."""
    folder.mkdir()
    image = fatbin((major * 10, False))
    library = write_library(folder / "lib", kernels_json.to_json(kernels, image), image)
    onnx.save(optimized, folder / "model.onnx")
    texts = {k.name: generate.own_text(k) for k in kernels}
    symbols = {k.name: [v.symbol for v in k.variants] for k in kernels}
    _compile(texts, symbols, folder)
    environment = {**os.environ, "ONNXOPT_EMULATION": str(folder), "ONNXOPT_EMULATION_MAJOR": str(major)}
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")])
    return library, environment


def _compile(texts: Mapping[str, str], symbols: Mapping[str, Sequence[str]], folder: Path) -> None:
    """Link the kernels and the driver into the folder; those that no test of this process had before are compiled.

    Most of a kernel's entry points are not launched and the others compute little, so nothing is optimized.
    """
    kept = {
        name: hashlib.sha256((name + text + " ".join(symbols[name])).encode()).hexdigest()
        for name, text in texts.items()
    }
    made = emulated.made("-O0")
    missing = {name: text for name, text in texts.items() if not (made / kept[name]).exists()}
    assert gcc.compile_kernels(missing, symbols, made, _COMPILE_SECONDS, emulated.options("-O0")) == {}
    for name in missing:
        (made / f"{name}.so").rename(made / kept[name])
    for name, digest in kept.items():
        (folder / f"{name}.so").symlink_to(made / digest)
    (folder / "libcuda.so.1").symlink_to(made / "libcuda.so.1")
