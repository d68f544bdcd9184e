"""A fused model in ONNX Runtime with the library, which chooses and launches as on a GPU; g++ made the kernels."""

from __future__ import annotations

import functools
import hashlib
import pickle
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json
from onnxopt.fusion.region import Kernel
from onnxopt.runtime import sessions
from onnxopt.verification.emulation import gcc
from onnxopt.verification.emulation import run as emulated_run
from tests.support import builds, forks
from tests.support.emulation import emulated
from tests.support.fakes.custom_ops_fake_driver import fatbin

_COMPILE_SECONDS = 300.0


def run(
    folder: Path,
    optimized: onnx.ModelProto,
    kernels: Sequence[Kernel],
    feeds: Sequence[dict[str, np.ndarray]],
    major: int = 8,
    libraries: Sequence[Path] = (),
    captured: bool = False,
    compiled: Sequence[Kernel] = (),
) -> tuple[list[dict[str, np.ndarray]], set[str]]:
    """What the model gives for each of the feeds, in a session each, and the entry points that were launched.

    folder: a new one. major: of the GPU's compute capability, 8 or 9. libraries: that stand in for those of NVIDIA.
    captured: streams say that they are being captured. compiled: the kernels with the entry points of several runs,
    which g++ compiles once. AssertionError where a run fails.
    """
    (results,), launched = run_models(folder, [(optimized, feeds)], kernels, major, libraries, captured, compiled)
    return results, launched


def run_models(
    folder: Path,
    models: Sequence[tuple[onnx.ModelProto, Sequence[dict[str, np.ndarray]]]],
    kernels: Sequence[Kernel],
    major: int = 8,
    libraries: Sequence[Path] = (),
    captured: bool = False,
    compiled: Sequence[Kernel] = (),
) -> tuple[list[list[dict[str, np.ndarray]]], set[str]]:
    """As `run`, of several models, each for its feeds."""
    library, jobs = _prepared(folder, models[0][0], kernels, major, compiled), []
    for number, (model, feeds) in enumerate(models):
        jobs.append((folder / f"model{number}.onnx", list(feeds)))
        onnx.save(model, jobs[-1][0])
    results = in_sessions(folder, library, jobs, major, [folder / "libcuda.so.1", *libraries], captured)
    failed = [r for of_model in results for r in of_model if isinstance(r, str)]
    assert not failed, failed
    return [[r for r in of_model if not isinstance(r, str)] for of_model in results], _launched(folder)


def in_sessions(
    folder: Path,
    library: Path,
    jobs: Sequence[tuple[Path, list[dict[str, np.ndarray]]]],
    major: int,
    libraries: Sequence[Path],
    captured: bool = False,
) -> list[list[dict[str, np.ndarray] | str]]:
    """What models give for each of their feeds, in a session each, or the text of the error.

    folder: with what the driver looks for. libraries: loaded first, the driver among them.
    """
    (folder / "jobs").write_bytes(pickle.dumps((library, list(jobs))))
    _in_a_process(folder, major, captured, libraries, emulated_run.main, folder, 0)
    return [[pickle.loads((folder / f"{j}.{k}").read_bytes()) for k in range(len(f))] for j, (_, f) in enumerate(jobs)]


def run_in_place(
    folder: Path,
    optimized: onnx.ModelProto,
    kernels: Sequence[Kernel],
    feeds: Sequence[dict[str, np.ndarray]],
    shared: Mapping[str, str],
    major: int = 8,
    captured: bool = False,
) -> tuple[list[dict[str, np.ndarray]], set[str]]:
    """As `run`, in one session, with outputs in the buffers of inputs: shared maps their names to these."""
    library = _prepared(folder, optimized, kernels, major)
    given = (folder / "model.onnx", library, list(feeds), dict(shared))
    driver_alone = [folder / "libcuda.so.1"]
    return _in_a_process(folder, major, captured, driver_alone, _runs_in_place, *given), _launched(folder)


def used(
    folder: Path, optimized: onnx.ModelProto, kernels: Sequence[Kernel], function: Callable[..., Any], *arguments: Any
) -> tuple[Any, set[str]]:
    """What a function of a module makes of a session and the arguments, and the entry points that were launched."""
    given = (_prepared(folder, optimized, kernels, 9), folder / "model.onnx", function, arguments)
    return _in_a_process(folder, 9, False, [folder / "libcuda.so.1"], _opened_for, *given), _launched(folder)


def _opened_for(library: Path, model: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(sessions.open_session(model, library=library), *arguments)


def _runs_in_place(
    model: Path, library: Path, feeds: list[dict[str, np.ndarray]], shared: dict[str, str]
) -> list[dict[str, np.ndarray]]:
    import onnxruntime as ort

    session, found = sessions.open_session(model, library=library), []
    names = [output.name for output in session.get_outputs()]
    for given in feeds:
        held = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in given.items()}
        bound = session.io_binding()
        for name, value in held.items():
            bound.bind_ortvalue_input(name, value)
        for name in names:
            if name in shared:
                bound.bind_ortvalue_output(name, held[shared[name]])
            else:
                bound.bind_output(name, "cpu")
        session.run_with_iobinding(bound)
        found.append({name: value.numpy().copy() for name, value in zip(names, bound.get_outputs(), strict=True)})
    return found


@functools.cache
def stand_in(source: Path, soname: str, *options: str) -> Path:
    """The library that a file of C++ is compiled to, which stands in for one of NVIDIA. options: for g++."""

    def build(folder: Path) -> None:
        command = ["g++", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{soname}", *emulated.LINKER, *options]
        subprocess.run([*command, "-o", folder / "library.so", source, "-ldl"], check=True)

    digest = hashlib.sha256(" ".join((str(source), soname, *options)).encode()).hexdigest()[:16]
    return builds.once(f"{source.stem}_{digest}", build) / "library.so"


def _in_a_process(
    folder: Path, major: int, captured: bool, libraries: Sequence[Path], function: Any, *arguments: Any
) -> Any:
    """What the function returns in a process that finds a GPU."""
    variables = {"ONNXOPT_EMULATION": str(folder), "ONNXOPT_EMULATION_MAJOR": str(major)}
    if captured:
        variables["ONNXOPT_EMULATION_CAPTURES"] = "1"
    return forks.result(function, *arguments, variables=variables, libraries=libraries)


def _launched(folder: Path) -> set[str]:
    file = folder / "launched"
    return set(file.read_text().split()) if file.exists() else set()


def _prepared(
    folder: Path, optimized: onnx.ModelProto, kernels: Sequence[Kernel], major: int, compiled: Sequence[Kernel] = ()
) -> Path:
    """The library of a model.onnx in the folder, a new one, which gets all that is emulated."""
    folder.mkdir()
    image = fatbin((major * 10, False))
    library = write_library(folder / "lib", kernels_json.to_json(kernels, image), image)
    onnx.save(optimized, folder / "model.onnx")
    texts = {k.name: generate.own_text(k) for k in compiled or kernels}
    symbols = {k.name: [v.symbol for v in k.variants] for k in compiled or kernels}
    _compile(texts, symbols, folder)
    return library


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
    problems = gcc.compile_kernels(missing, symbols, made, _COMPILE_SECONDS, emulated.options("-O0"))
    assert not problems, problems
    for name in missing:
        (made / f"{name}.so").rename(made / kept[name])
    for name, digest in kept.items():
        (folder / f"{name}.so").symlink_to(made / digest)
    (folder / "libcuda.so.1").symlink_to(made / "libcuda.so.1")
