"""A trace of the runs that `bench` times, in the JSON form that Perfetto and Chrome's tracing open.

ONNX Runtime's profiler has an event for each node, with the time that its CPU part takes; on CUDA that is the time to
launch it. Events are named after operators here, fused functions among them, and the two sides are two processes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onnxopt.artifact.folder import replace_text
from onnxopt.errors import UsageError
from onnxopt.runtime import configuration, sessions
from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.configuration import Configuration

_RUNS = 10
_KERNEL = "_kernel_time"  # how ONNX Runtime's names of events of nodes end


def check(path: Path) -> None:
    """UsageError where the file cannot be written, before anything is measured."""
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give the file that the trace is written to")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.absolute().parent}")


def events_of(
    model: Path, library: Path | None, chosen: Configuration, folder: Path, feeds: Mapping[str, sessions.Array],
    scratch: Path,
) -> list[dict[str, Any]]:  # fmt: skip
    """ONNX Runtime's events of some runs after the first. folder: of the artifact. RunError where a run fails."""
    profiled = {"enable_profiling": True, "profile_file_prefix": str(scratch / "profile")}
    data = chosen.data | {"session_options": chosen.data["session_options"] | profiled}
    session = configuration.open_session(model, library, data, folder)
    run = BoundRun(session, feeds, chosen.provider)
    for _ in range(_RUNS):
        run()
    events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    return events


def write(path: Path, sides: Mapping[str, list[dict[str, Any]]]) -> None:
    """Write the events of each side, by its name, into one file; an earlier file stays until the new one is whole."""
    found = [event for number, (name, events) in enumerate(sides.items()) for event in _named(events, number, name)]
    replace_text(path, json.dumps({"traceEvents": found, "displayTimeUnit": "ms"}) + "\n")


def _named(events: list[dict[str, Any]], number: int, side: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": side}}
    for event in events:
        arguments = event.get("args", {})
        operator = arguments.get("op_name")
        if operator and event["name"].endswith(_KERNEL):
            arguments = {"node": event["name"].removesuffix(_KERNEL), **arguments}
            yield event | {"pid": number, "name": operator, "args": arguments}
        else:
            yield event | {"pid": number}
