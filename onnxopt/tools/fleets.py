"""Options of `onnxopt bench` beside the times: GPUs for a load, and a record in the artifact."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from onnxopt.artifact import record
from onnxopt.artifact.fleet import Fleet, fleet_of
from onnxopt.artifact.measurement import BenchResult
from onnxopt.errors import UsageError
from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import CPU

_OPTIONS = (
    click.option(
        "--load", type=float, metavar="REQUESTS/S", help="Say how many GPUs this load needs, before and after."
    ),
    click.option("--gpus", type=float, metavar="N", help="Like --load, for the load that N GPUs carry today."),
    click.option("--requests-per-run", type=int, help="Requests that one run serves. Default: the batch size."),
    click.option(
        "--utilization", type=float, default=1.0, show_default=True, help="Share of the time that a GPU may be busy."
    ),
    click.option("--record", is_flag=True, help="Keep the result in the artifact's manifest and report."),
)


def fleet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which takes them as keyword arguments of FleetQuestion."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def times_a_gpu(provider: str | None) -> bool:
    """Whether bench times a GPU. provider: ONNX Runtime's name, None for bench's default."""
    return sessions.cuda_is_usable() if provider is None else provider != CPU


@dataclasses.dataclass(frozen=True)
class FleetQuestion:
    """The options' values."""

    load: float | None
    gpus: float | None
    requests_per_run: int | None
    utilization: float
    record: bool

    def check(self, artifact: Path, provider: str | None) -> None:
        """UsageError for what cannot be answered or recorded; called before anything is timed.

        provider: of bench, None for its default.
        """
        if self._fleet(1.0, 1.0, 1) is not None and not times_a_gpu(provider):
            raise UsageError(
                "--load and --gpus count GPUs, and a CPU would be timed here; run it on the GPU that serves"
            )
        if self.record:
            record.check_recordable(artifact)

    def answer(self, artifact: Path, result: BenchResult) -> Fleet | None:
        """The GPUs for the load, None without one. Records the result in the artifact with --record."""
        before, after = result.baseline.p50, result.artifact.p50
        if result.threads > 1:  # runs overlap
            before, after = (1e3 * result.requests / rate for rate in result.requests_a_second)
        fleet = self._fleet(before, after, result.requests)
        if self.record:
            record.record(artifact, result, fleet)
        return fleet

    def _fleet(self, before_ms: float, after_ms: float, requests: int) -> Fleet | None:
        if self.load is None and self.gpus is None:
            return None
        return fleet_of(
            before_ms,
            after_ms,
            load=self.load,
            gpus=self.gpus,
            requests=requests if self.requests_per_run is None else self.requests_per_run,
            utilization=self.utilization,
        )
