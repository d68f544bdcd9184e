"""What the page shows of measurements: each one, and those that differ in one size or in the callers as plots."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from onnxopt.artifact.fleet import Fleet, fleet_of
from onnxopt.artifact.measurement import BenchResult
from onnxopt.artifact.report import plots
from onnxopt.runtime.sessions import CPU

THREADS = "threads"  # the name of what varies, where that is the number of concurrent callers
_FLEET = 100  # GPUs before: makes the ratio a number of machines


@dataclasses.dataclass(frozen=True)
class Latency:
    """plot: None where the measurement has no distribution. fleet: what the ratio means in GPUs, None on a CPU.

    rows: figures of both sides beside the times, as text; those that neither side has are left out.
    """

    measurement: BenchResult
    plot: Markup | None
    fleet: Fleet | None
    rows: tuple[tuple[str, str, str], ...]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Measurements of one machine that differ in one dim, or in the number of callers, alone.

    name: of the dim, or THREADS. where: machine and provider. fixed: what they have in common, "" for nothing.
    against: what the baseline is. results: by value of what varies, ascending. rate, median: plots.
    """

    name: str
    where: str
    fixed: str
    against: str
    results: tuple[tuple[int, BenchResult], ...]
    rate: Markup
    median: Markup


def sizes_of(case: str) -> dict[str, int]:
    """{"batch": 8} of "batch=8, seed 0"."""
    return {name.strip(): int(size) for name, size in re.findall(r"([^=,]+?)=(\d+)", case)}


def latency(measurement: BenchResult) -> Latency:
    """One measurement."""
    sides = (("before", measurement.baseline), ("artifact", measurement.artifact))
    curves = [plots.Curve(name, timing.quantiles) for name, timing in sides if len(timing.quantiles) > 1]
    load = None
    if measurement.provider != CPU:
        load = fleet_of(measurement.baseline.p50, measurement.artifact.p50, gpus=_FLEET)
    plot = plots.distribution(curves, "ms") if curves else None
    return Latency(measurement, plot, load, tuple(_figures(measurement)))


def _figures(result: BenchResult) -> Iterator[tuple[str, str, str]]:
    before, after = result.baseline, result.artifact
    memory, device = (
        [None if count is None else count / 1e6 for count in counts]
        for counts in ((before.host_bytes, after.host_bytes), (before.device_bytes, after.device_bytes))
    )
    for name, form, figures in (
        ("Requests a second", "{:,.1f}", result.requests_a_second),
        (result.launched.capitalize(), "{:,}", (before.launches, after.launches)),
        ("Peak host memory, MB", "{:,.1f}", memory),
        ("Peak GPU memory, MB", "{:,.1f}", device),
        ("Open, ms", "{:,.1f}", (before.open_ms, after.open_ms)),
        ("First result, ms", "{:,.1f}", (before.first_ms, after.first_ms)),
    ):
        one, other = ("–" if figure is None else form.format(figure) for figure in figures)
        if (one, other) != ("–", "–"):
            yield name, one, other


def sweeps(measurements: Sequence[BenchResult]) -> tuple[Sweep, ...]:
    """Every group of two or more that differ in one value alone, in the order of their first measurement."""
    groups: dict[tuple[object, ...], dict[int, BenchResult]] = {}
    for result in measurements:
        values = {**sizes_of(result.case), THREADS: result.threads}
        machine = (result.device, result.provider, result.against)
        for name, value in values.items():
            others = tuple((other, size) for other, size in values.items() if other != name)
            groups.setdefault((*machine, name, others), {})[value] = result
    return tuple(_sweep(str(key[-2]), dict(sorted(group.items()))) for key, group in groups.items() if len(group) > 1)


def _sweep(name: str, by_value: dict[int, BenchResult]) -> Sweep:
    first = next(iter(by_value.values()))
    others = {n: size for n, size in {**sizes_of(first.case), THREADS: first.threads}.items() if n != name}
    if others.get(THREADS) == 1:
        del others[THREADS]
    results = tuple(by_value.items())
    rates = _lines([(value, result.requests_a_second) for value, result in results])
    medians = _lines([(value, (result.baseline.p50, result.artifact.p50)) for value, result in results])
    return Sweep(
        name=name,
        where=f"{first.where}, {first.provider.removesuffix('ExecutionProvider')}",
        fixed=", ".join(f"{other} = {size}" for other, size in others.items()),
        against=first.against,
        results=results,
        rate=plots.over_sizes(rates, name, "requests a second"),
        median=plots.over_sizes(medians, name, "ms a run, p50"),
    )


def _lines(points: Sequence[tuple[int, tuple[float, float]]]) -> list[plots.Line]:
    return [
        plots.Line(name, tuple((value, figures[k]) for value, figures in points))
        for k, name in enumerate(("before", "artifact"))
    ]
