"""Fleet arithmetic: what a measured ratio means in GPUs for a given load.

    requests a second of one GPU = requests a run / seconds a run * the share of time it may be busy
    GPUs = load / that, rounded up

The load is given in requests a second, or as the number of GPUs that carry it today.
"""

from __future__ import annotations

import math

import pydantic

from onnxopt.errors import UsageError

_ROUNDING = 1e-9  # what a quotient that is a whole number may be off by


class Fleet(pydantic.BaseModel):
    """GPUs for one load, before and after.

    load: requests a second. requests: a run serves (the batch size). utilization: share of the time that a GPU may be
    busy. before, after: GPUs, whole. before_exact, after_exact: the same before rounding up.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    load: float
    requests: int
    utilization: float
    before: int
    after: int
    before_exact: float
    after_exact: float

    def text(self) -> str:
        """One line for people."""
        share = 1 - self.after_exact / self.before_exact
        change = f"{share:.0%} less GPU time" if share >= 0 else f"{-share:.0%} more GPU time"
        assumed = f"{_count(self.requests, 'request')} a run, GPUs busy {self.utilization:.0%} of the time"
        return (
            f"fleet: {self.load:,.6g} requests/s need {_count(self.before, 'GPU')} before and {self.after:,} with the "
            f"artifact ({change}; {assumed})"
        )


def fleet_of(
    before_ms: float,
    after_ms: float,
    *,
    load: float | None = None,
    gpus: float | None = None,
    requests: int = 1,
    utilization: float = 1.0,
) -> Fleet:
    """The GPUs that a load needs where a run takes `before_ms`, and where it takes `after_ms` milliseconds.

    load: requests a second; or gpus: how many carry the load at `before_ms`. Exactly one of the two. UsageError where a
    number is not positive, or utilization is above 1.
    """
    if (load is None) == (gpus is None):
        raise UsageError("give the load as requests a second or as a number of GPUs, one of the two")
    for name, value in (("load", load), ("GPUs", gpus), ("time of a run", before_ms), ("time of a run", after_ms)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"fleet: the {name} must be a positive number, not {value:g}")
    if requests < 1:
        raise UsageError(f"fleet: requests a run must be 1 or more, not {requests}")
    if not 0 < utilization <= 1:
        raise UsageError(f"fleet: utilization must be above 0 and at most 1, not {utilization:g}")
    capacity, new_capacity = (requests * 1e3 / ms * utilization for ms in (before_ms, after_ms))
    total = load if load is not None else (gpus or 0.0) * capacity
    before, after = total / capacity, total / new_capacity
    return Fleet(
        load=total,
        requests=requests,
        utilization=utilization,
        before=_whole(before),
        after=_whole(after),
        before_exact=before,
        after_exact=after,
    )


def _whole(gpus: float) -> int:
    return max(1, math.ceil(gpus * (1 - _ROUNDING)))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
