"""What a session costs in a process of its own: time to open and to the first result, launches, peak memory.

A process of its own, because the peak of another session's memory would hide that of the one that is asked about.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from onnxopt import leftovers
from onnxopt.children import ChildEnded, Children
from onnxopt.runtime import configuration, time_limit
from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.captured import Captured
from onnxopt.runtime.configuration import Configuration
from onnxopt.runtime.sessions import CUDA, Array, RunError

_RUNS = 3  # behind the first: arenas have grown by then, and what measures in its first runs has measured
_INTERVAL = 0.002  # seconds between two looks at the device's memory
_RUN_NODE = re.compile(r'"cat"\s*:\s*"Node".*_kernel_time"')


@dataclasses.dataclass(frozen=True)
class Footprint:
    """open_ms: to open the session, in a process that has imported ONNX Runtime and started CUDA; first_ms: to open it
    and have its first result.

    launches: on a GPU the kernels of one run; on a CPU the operators that ONNX Runtime runs, also those inside control
    flow. host_bytes: the peak of this process's memory, above what it had before the session; device_bytes: the same of
    the first GPU, other processes included; None on a CPU. note: why a figure is None that should not be, such as the
    launches of a run that cannot be captured.
    """

    open_ms: float | None = None
    first_ms: float | None = None
    launches: int | None = None
    host_bytes: int | None = None
    device_bytes: int | None = None
    note: str = ""


class _Question(NamedTuple):
    """data: of the configuration. scratch: a folder, which the parent removes. limit: of one run, a `time_limit.Limit`.

    The other fields as for `measure`.
    """

    model: Path
    library: Path | None
    folder: Path
    provider: str
    data: dict[str, Any]
    feeds: dict[str, Array]
    keep_outputs: bool
    scratch: Path
    limit: tuple[float, bool] | None


def measure(
    model: Path,
    library: Path | None,
    folder: Path,
    chosen: Configuration,
    feeds: Mapping[str, Array],
    *,
    keep_outputs: bool = True,
) -> Footprint:
    """The footprint of a model with the options of a configuration of an artifact folder.

    keep_outputs: as for BoundRun. RunError where the process fails, also where a run takes longer than it may.
    """
    try:
        with leftovers.temporary_folder() as scratch, Children() as children:
            question = _Question(
                *(model, library, folder, chosen.provider, chosen.data, dict(feeds), keep_outputs, scratch),
                limit=time_limit.current(),
            )
            answer = json.loads(children.ask(__name__, pickle.dumps(tuple(question))))
    except ChildEnded as error:
        raise RunError(f"its process ended with {error}") from error
    if "error" in answer:
        raise RunError(answer["error"])
    return Footprint(**answer)


def serve() -> None:
    """The child: answers one question. Messages are pickles, which are safe here: the parent alone writes them."""
    question = _Question(*pickle.load(sys.stdin.buffer))
    time_limit.end_hanging_program(lambda reason: _answer({"error": str(reason)}))
    try:
        with contextlib.ExitStack() as stack:
            if question.limit is not None:
                stack.enter_context(time_limit.runs_end_within(time_limit.Limit(*question.limit)))
            answer = dataclasses.asdict(_measured(question))
    except RunError as error:
        answer = {"error": str(error)}
    _answer(answer)


def _answer(answer: Mapping[str, object]) -> NoReturn:
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # what a failed capture left behind must not take the answer with it


def _measured(question: _Question) -> Footprint:
    import onnxruntime as ort

    cuda, data = None, question.data
    if question.provider == CUDA:
        ort.preload_dlls()
        cuda = Captured()
        data = {**data, "provider_options": {**data["provider_options"], **cuda.provider_options}}
    with _min_free(cuda) as least_free:
        if cuda is None:
            profiled = {"enable_profiling": True, "profile_file_prefix": str(question.scratch / "profile")}
            data = {**data, "session_options": {**data["session_options"], **profiled}}
        _forget_peak()
        free, host = None if cuda is None else cuda.free_bytes(), _status("VmRSS")
        started = time.perf_counter()
        session = configuration.open_session(question.model, question.library, data, question.folder)
        opened = time.perf_counter() - started
        run = BoundRun(session, question.feeds, question.provider, keep_outputs=question.keep_outputs)
        launches = None if cuda else _operators(Path(session.end_profiling()))
        for _ in range(_RUNS):
            run()
        peak = _status("VmHWM")
        used = None if free is None else max(0, free - least_free())
    launches, note = (launches, "") if cuda is None else _launches(cuda, run)
    return Footprint(
        open_ms=round(1e3 * opened, 3),
        first_ms=round(1e3 * (opened + run.first), 3),
        launches=launches,
        host_bytes=None if peak is None or host is None else peak - host,
        device_bytes=used,
        note=note,
    )


def _launches(cuda: Captured, run: BoundRun) -> tuple[int | None, str]:
    try:
        return cuda.launches(run), ""
    except RunError as error:
        return None, f"launches were not counted, a run cannot be captured: {error}"


def _operators(profile: Path) -> int:
    """Operators that the only run of a profile ran."""
    with profile.open(encoding="utf-8", errors="replace") as lines:
        return sum(_RUN_NODE.search(line) is not None for line in lines)


def _status(name: str) -> int | None:
    """Bytes of this process as the kernel of Linux counts them: VmRSS now, VmHWM at most; None where it does not."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return None


def _forget_peak() -> None:
    """Let VmHWM begin anew, where the kernel has that."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


@contextlib.contextmanager
def _min_free(cuda: Captured | None) -> Iterator[Callable[[], int]]:
    """Looks at the device's free memory in a thread; yields a function that says the least that was seen."""
    if cuda is None:
        yield lambda: 0
        return
    seen, done = [cuda.free_bytes()], threading.Event()

    def look() -> None:
        cuda.make_current()
        while not done.wait(_INTERVAL):
            seen.append(cuda.free_bytes())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: min(*seen, cuda.free_bytes())
    finally:
        done.set()
        thread.join()
