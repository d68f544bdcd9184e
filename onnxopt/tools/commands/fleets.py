"""What `onnxopt bench` adds to its times: GPUs for a load, and a record in the manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from onnxopt.artifact.fleet import Fleet
    from onnxopt.tools.bench import Result

_OPTIONS = (
    click.option(
        "--load", type=float, metavar="REQUESTS/S", help="Say how many GPUs this load needs, before and after."
    ),
    click.option("--gpus", type=float, metavar="N", help="The same for the load that N GPUs carry today."),
    click.option("--requests-per-run", type=int, help="How many requests a run serves. Default: the batch size."),
    click.option("--utilization", type=float, default=1.0, show_default=True, help="Share of time a GPU may be busy."),
    click.option("--record", is_flag=True, help="Keep the result in the artifact's manifest and report."),
)


def fleet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command takes them as **question."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclasses.dataclass(frozen=True)
class Question:
    """The options' values."""

    load: float | None
    gpus: float | None
    requests_per_run: int | None
    utilization: float
    record: bool

    def check(self, artifact: Path) -> None:
        """UsageError for what cannot be answered or recorded; called before anything is timed."""
        from onnxopt.artifact import package

        self._fleet(1.0, 1.0, 1)
        if self.record:
            package.check_recordable(artifact)

    def answer(self, artifact: Path, result: Result) -> Fleet | None:
        """The GPUs, where they were asked for; records the result, where that was."""
        from onnxopt.artifact import package
        from onnxopt.artifact.report import making

        fleet = self._fleet(result.baseline.p50, result.artifact.p50, result.requests)
        if self.record:
            package.record(artifact, result.measurement(fleet))
            making.keep(artifact, result)
        return fleet

    def _fleet(self, before_ms: float, after_ms: float, requests: int) -> Fleet | None:
        from onnxopt.artifact import fleet

        if self.load is None and self.gpus is None:
            return None
        return fleet.of(
            before_ms,
            after_ms,
            load=self.load,
            gpus=self.gpus,
            requests=requests if self.requests_per_run is None else self.requests_per_run,
            utilization=self.utilization,
        )
