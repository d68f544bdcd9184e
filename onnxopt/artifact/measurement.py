"""What a benchmark measured: the whole result, which `bench` returns and the report shows, and the manifest's record.

`onnxopt bench --json` prints a BenchResult; the report's facts hold the same, with times of single kernels.
"""

from __future__ import annotations

import dataclasses

import pydantic

from onnxopt.artifact.fleet import Fleet
from onnxopt.runtime.sessions import CPU


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds a run: median, 95th percentile, mean and minimum of `runs` runs.

    quantiles: the distribution, at 0, 5, 10 ... 100 % of the runs. runs_a_second: of all concurrent callers together.

    The others are measured in a process of its own, and None where they were not. open_ms: to open a session; first_ms:
    to open it and have its first result. launches: on a GPU the kernels of one run, on a CPU the operators that ONNX
    Runtime runs. host_bytes, device_bytes: the peak of memory that opening the session and running it added.
    """

    p50: float
    p95: float
    mean: float
    best: float
    runs: int
    quantiles: tuple[float, ...] = ()
    runs_a_second: float | None = None
    open_ms: float | None = None
    first_ms: float | None = None
    launches: int | None = None
    host_bytes: int | None = None
    device_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class KernelTime:
    """Measured device or thread time of one fused function: microseconds a call, and calls a run of the model."""

    microseconds: float
    calls: int


@dataclasses.dataclass(frozen=True)
class BenchResult:
    """One benchmark. ratio: p50 of the baseline over p50 of the artifact, above 1 where the artifact is faster.

    against: what the baseline is. case: input sizes. compared: worst difference over the limit, of any output.
    requests: how many a run serves, its batch size. threads: concurrent callers of one session, whose single runs are
    timed. notes: what could not be measured, and why. device: the GPU's name as the driver spells it, or the
    processor's; "" or "unknown" where a file of measurements does not say. kernels: times of single fused functions by
    name; `bench` measures none, a file that the report reads may hold them.
    """

    provider: str
    case: str
    against: str
    baseline: Timing
    artifact: Timing
    ratio: float
    compared: float
    requests: int = 1
    threads: int = 1
    device: str = ""
    notes: tuple[str, ...] = ()
    kernels: dict[str, KernelTime] = dataclasses.field(default_factory=dict)

    @property
    def where(self) -> str:
        """The device; the execution provider where the device is unknown."""
        return self.provider if self.device in ("", "unknown") else self.device

    @property
    def launched(self) -> str:
        """What `launches` counts."""
        return "nodes run by ONNX Runtime" if self.provider == CPU else "launches"

    @property
    def requests_a_second(self) -> tuple[float, float]:
        """Of the baseline and of the artifact; of files without a rate, by the mean run of one caller."""
        before, after = (t.runs_a_second or 1e3 / t.mean for t in (self.baseline, self.artifact))
        return self.requests * before, self.requests * after

    def measurement(self, fleet: Fleet | None = None) -> Measurement:
        """The manifest's record of this result, for the ONNX Runtime of this process."""
        import onnxruntime as ort

        return Measurement(
            device=self.device,
            provider=self.provider,
            case=self.case,
            against=self.against,
            onnxruntime=ort.__version__,
            before_ms=self.baseline.p50,
            after_ms=self.artifact.p50,
            ratio=self.ratio,
            fleet=fleet,
        )


class Measurement(pydantic.BaseModel):
    """A benchmark of the artifact that was kept with it (`onnxopt bench --record`).

    device: the GPU's name, or the processor's. against: what it was timed against. before_ms, after_ms: median of a
    run. ratio: before over after. fleet: what that means in GPUs for the load that was asked about.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    device: str
    provider: str
    case: str
    against: str
    onnxruntime: str
    before_ms: float
    after_ms: float
    ratio: float
    fleet: Fleet | None = None
