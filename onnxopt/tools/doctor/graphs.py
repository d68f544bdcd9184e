"""Whether the artifact runs as a CUDA graph: by its nodes, and where there is a GPU, by running it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxopt.artifact import layout
from onnxopt.artifact.folder import temporary_folder
from onnxopt.errors import OnnxoptError
from onnxopt.runtime import configuration as configurations
from onnxopt.runtime import providers
from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.configuration import configuration_for
from onnxopt.runtime.sessions import CUDA, RunError
from onnxopt.tools import bench
from onnxopt.tools.bench_options import BenchOptions
from onnxopt.tools.doctor.finding import Finding, Subject

_SHOWN = 5


def cuda_graph(subject: Subject) -> Iterator[Finding]:
    """The nodes that prevent a CUDA graph; without any, and on a GPU, whether one is captured and replayed."""
    blocking = providers.read(subject.folder, providers.GENERIC).get("cuda_graph", {}).get("blocking", [])
    if blocking:
        listed = "; ".join(f"{row['node']}: {row['reason']}" for row in blocking[:_SHOWN])
        others = f"; and {len(blocking) - _SHOWN} more" if len(blocking) > _SHOWN else ""
        yield Finding("cuda graph", "note", f"not possible: {listed}{others}")
        return
    chosen = configuration_for(subject.folder)
    if chosen.provider != CUDA:
        yield Finding("cuda graph", "ok", "no node prevents it; not tried, there is no GPU")
        return
    path = subject.folder / layout.LIBRARY_PATH
    try:
        _replay(subject, path.absolute() if path.is_file() else None, chosen.data)
    except (RunError, OnnxoptError) as error:
        yield Finding(
            "cuda graph",
            "problem",
            f"no node prevents it, and ONNX Runtime does not capture it: {error}",
            "run without it (the default), and report this with the manifest",
        )
        return
    yield Finding("cuda graph", "ok", "captured and replayed; onnxopt.load(..., cuda_graph=True) with bound buffers")


def _replay(subject: Subject, library: Path | None, data: dict[str, Any]) -> None:
    """Capture and replay once at usual sizes. RunError where ORT refuses."""
    model = subject.folder / layout.MODEL
    with temporary_folder() as scratch:
        reference = bench.reference_of(model, None, CUDA, BenchOptions(), scratch)
    case = next(iter(reference.outputs))
    feeds = reference.feeds(case)
    session = configurations.open_session(model, library, data, subject.folder, cuda_graph=True)
    run = BoundRun(session, feeds, CUDA)
    for _ in range(3):
        run()
