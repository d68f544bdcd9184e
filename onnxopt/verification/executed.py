"""Which fused functions ran as the library's kernels, and on which provider, read from ONNX Runtime's profile.

ONNX Runtime inlines a function without a kernel, so a node that was run under a function's name was a kernel. The
profile lists the nodes that were run, also inside control flow, in every ONNX Runtime from 1.21 on.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.runtime import devices
from onnxopt.runtime.sessions import CPU

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

EMULATED = "CUDA (emulated)"  # in the place of an execution provider's name: CUDA kernels that ran on the CPU
_SECONDS = 0.3  # of runs that are profiled; a loop of small nodes writes 100 MB in a second
_OPERATOR = re.compile(r'"op_name"\s*:\s*"([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Execution:
    """What one execution provider executed of the library's kernels while the model was verified.

    device: the GPU's or the processor's name. kernels: names of fused functions, sorted. of: how many fused functions
    the model had. A function that ONNX Runtime ran as its original nodes is left out.

    Of the provider EMULATED only: shapes: of the inputs of each run, by kernel, each as "float32[7,768], float32[768]".
    not_run: why the other kernels were not emulated, by name.
    """

    provider: str
    device: str
    onnxruntime: str
    kernels: tuple[str, ...]
    of: int
    shapes: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    not_run: dict[str, str] = dataclasses.field(default_factory=dict)


class Profile:
    """The kernels that the runs of one session execute.

    folder: where ONNX Runtime writes its profile. kernels: the names to look for. Runs after the first 0.3 seconds are
    not profiled, so a kernel that only those reach counts as not executed.
    """

    def __init__(self, folder: Path, kernels: Collection[str]):
        self.prefix = folder / "profile"
        self._kernels = frozenset(kernels)
        self._session: InferenceSession | None = None
        self._started = 0.0
        self.executed: dict[str, set[str]] = collections.defaultdict(set)

    def begin(self, session: InferenceSession) -> None:
        """session: created with this profile's prefix."""
        self._session, self._started = session, time.monotonic()

    def ran(self) -> None:
        """Called after each run: ends the profile in time."""
        if time.monotonic() - self._started > _SECONDS:
            self.end()

    def end(self) -> None:
        """Read the profile, and remove its file. Does nothing from the second call on."""
        if self._session is None:
            return
        session, self._session = self._session, None
        path = Path(session.end_profiling())
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                operator = _OPERATOR.search(line)
                if operator is not None and operator[1] in self._kernels and "_kernel_time" in line:
                    provider = json.loads(line.strip().rstrip(","))["args"].get("provider", "")
                    self.executed[provider].add(operator[1])
        path.unlink(missing_ok=True)


def executions(executed: dict[str, set[str]], provider: str, of: int) -> list[Execution]:
    """The record for the provider that a session was created for, and for others that ran kernels in it."""
    import onnxruntime as ort

    def device(name: str) -> str:
        gpu = None if name == CPU else devices.first()
        return gpu.name if gpu else devices.processor()

    providers = dict.fromkeys([provider, *sorted(executed)])
    return [
        Execution(name, device(name), ort.__version__, tuple(sorted(executed.get(name, ()))), of) for name in providers
    ]


def combined(rows: Iterable[Execution]) -> tuple[Execution, ...]:
    """One row a provider: of several, the last one with the kernels of all."""
    by_provider: dict[str, Execution] = {}
    for row in rows:
        before = by_provider.get(row.provider)
        names = set(row.kernels) | set(before.kernels if before else ())
        by_provider[row.provider] = dataclasses.replace(row, kernels=tuple(sorted(names)))
    return tuple(by_provider.values())
