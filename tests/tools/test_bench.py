"""bench: what is compared and timed with what; how fast anything is lies outside of a test."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import time
from pathlib import Path

import onnx
import pytest

import onnxopt
from onnxopt.errors import ModelError, UsageError, VerificationError
from onnxopt.runtime import configuration
from onnxopt.runtime.sessions import RunError
from onnxopt.tools import timing
from onnxopt.tools.commands import bench as bench_command
from tests.support.command import assert_refused, run
from tests.support.small_models import CHAIN, RANDOM, TOKENS, write

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture
def made(tmp_path: Path, artifact: Path) -> Path:
    return onnxopt.optimize(write(tmp_path / "chain.onnx", CHAIN), artifact, archs=()).path


@pytest.mark.usefixtures("without_footprints")
def test_against_the_original_by_default(made: Path) -> None:
    result = onnxopt.bench(made, iterations=7)
    assert result.against == f"original {made.parent / 'chain.onnx'}"
    assert result.case == "batch=1, seed 0"
    for side in (result.baseline, result.artifact):
        assert side.runs == 7
        assert 0 < side.best <= side.p50 <= side.p95
    assert result.ratio == pytest.approx(result.baseline.p50 / result.artifact.p50, rel=0.01)
    assert result.compared <= 1


def test_what_a_process_of_its_own_measures(made: Path) -> None:
    result = onnxopt.bench(made, iterations=3)
    assert result.notes == ()
    for side in (result.baseline, result.artifact):
        assert side.open_ms is not None and side.first_ms is not None
        assert 0 < side.open_ms < side.first_ms
        assert side.host_bytes is not None and 0 < side.host_bytes < 1e9
        assert side.device_bytes is None
    before, after = (len(onnx.load(path).graph.node) for path in (made.parent / "chain.onnx", made / "model.onnx"))
    assert result.artifact.launches == after
    assert result.baseline.launches is not None and after < result.baseline.launches <= before
    rows = {cells[0]: cells[1:] for cells in (re.split(r"  +", line) for line in bench_command.table(result)[1:])}
    assert rows["nodes run by ONNX Runtime"] == [str(result.baseline.launches), str(after)]
    assert rows["open ms"][1] == f"{result.artifact.open_ms:.1f}"
    assert "peak GPU memory, MB" not in rows


@pytest.mark.usefixtures("without_footprints")
def test_requests_a_second(made: Path) -> None:
    result = dataclasses.replace(onnxopt.bench(made, shapes={"batch": (4096,)}, iterations=3), requests=8)
    assert result.baseline.runs_a_second == pytest.approx(1e3 / result.baseline.mean, rel=0.01)
    assert result.requests_a_second[1] == pytest.approx(8e3 / result.artifact.mean, rel=0.01)


@pytest.mark.usefixtures("without_footprints")
def test_a_process_that_fails_is_a_note(made: Path) -> None:
    """As the footprints do here. What was timed stays."""
    result = onnxopt.bench(made, iterations=3)
    assert result.artifact.open_ms is None and result.artifact.runs == 3
    assert result.notes == tuple(
        f"{name}: opening, launches and memory were not measured: switched off" for name in ("before", "artifact")
    )


@pytest.mark.usefixtures("without_footprints")
def test_concurrent_callers_share_one_session(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    open_session = configuration.open_session
    monkeypatch.setattr(configuration, "open_session", lambda *a, **k: opened.append(a[0]) or open_session(*a, **k))
    result = onnxopt.bench(made, iterations=60, threads=3)
    assert opened == [made.parent / "chain.onnx", made / "model.onnx"]
    assert result.threads == 3
    for side in (result.baseline, result.artifact):
        assert side.runs == 60
        assert side.runs_a_second is not None and side.runs_a_second > 0
    with pytest.raises(UsageError, match="threads must be 1 or more"):
        onnxopt.bench(made, threads=0)


@pytest.mark.usefixtures("without_footprints")
def test_a_changed_original_is_not_taken_for_it(made: Path) -> None:
    write(made.parent / "chain.onnx", TOKENS)
    result = onnxopt.bench(made, iterations=3)
    assert result.against.startswith("the artifact's own model without the library")


@pytest.mark.usefixtures("without_footprints")
def test_against_another_artifact(made: Path, tmp_path: Path) -> None:
    other = onnxopt.optimize(made.parent / "chain.onnx", tmp_path / "other", archs=()).path
    assert onnxopt.bench(made, against=other, iterations=3).against == f"artifact {other}"


def test_nothing_is_timed_where_outputs_differ(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "in_turn", lambda *_: pytest.fail("timed"))
    wrong = write(tmp_path / "wrong.onnx", CHAIN.replace("Sub(c, a)", "Sub(a, c)"))
    with pytest.raises(VerificationError, match="not timed, its outputs differ: output y"):
        onnxopt.bench(made, against=wrong)


@pytest.mark.usefixtures("without_footprints")
def test_shapes_and_iterations(made: Path) -> None:
    assert onnxopt.bench(made, shapes={"x": (33, 8)}, iterations=3).case == "batch=33, seed 0"
    with pytest.raises(UsageError, match="1 or more"):
        onnxopt.bench(made, iterations=0)
    with pytest.raises(ModelError, match="no such file"):
        onnxopt.bench(made, against=made / "nothing.onnx")


@pytest.mark.usefixtures("without_footprints")
def test_typical_sizes_and_random_models(tmp_path: Path) -> None:
    for name, text, case in (("t", TOKENS, "batch=1, sequence=128"), ("r", RANDOM, "n=128")):
        made = onnxopt.optimize(write(tmp_path / f"{name}.onnx", text), tmp_path / name, archs=()).path
        assert onnxopt.bench(made, iterations=3).case == f"{case}, seed 0"


def test_the_two_run_in_turn() -> None:
    order: list[str] = []

    def timed(name: str) -> float:
        order.append(name)
        return 0.02

    first, second = timing.in_turn([lambda: timed("a")], [lambda: timed("b")], 9, 1.0)
    assert first.runs == second.runs == 9
    changes = sum(x != y for x, y in itertools.pairwise(order))
    assert changes >= 5
    assert first.p50 == 20.0
    assert first.runs_a_second == 50.0


def test_callers_run_at_the_same_time() -> None:
    """One caller that sleeps for 20 ms has a rate of at most 50, and four have one of at most 200."""

    def slept() -> float:
        time.sleep(0.02)
        return 0.02

    first, second = timing.in_turn([slept] * 4, [slept] * 4, 60, 1.0)
    for side in (first, second):
        assert side.runs == 60
        assert side.runs_a_second is not None and 75 < side.runs_a_second <= 200


def test_a_caller_that_fails_ends_the_timing() -> None:
    def refused() -> float:
        raise RunError("no memory")

    with pytest.raises(RunError, match="no memory"):
        timing.in_turn([refused] * 2, [lambda: 0.01] * 2, 5, 1.0)


@pytest.mark.gpu
@pytest.mark.usefixtures("library")
def test_launches_and_memory_of_a_gpu(tmp_path: Path) -> None:
    """The original of a chain launches a kernel for each operator, the artifact one for all."""
    text = CHAIN.replace("batch", "1048576")
    artifact = onnxopt.optimize(write(tmp_path / "chain.onnx", text), tmp_path / "a", archs=("native",)).path
    result = onnxopt.bench(artifact, iterations=10, provider="CUDAExecutionProvider")
    assert result.notes == ()
    launches = (result.baseline.launches, result.artifact.launches)
    assert launches[0] is not None and launches[1] is not None and launches[0] > launches[1] >= 1
    for side in (result.baseline, result.artifact):
        assert side.device_bytes is not None and side.device_bytes >= 8 * 1048576  # at least the input


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        ([50.0] * 12 + [100.0] * 12, "half of the runs took 50 to 100 ms: something else keeps this machine busy"),
        ([50.0] * 23 + [100.0], None),
        ([50.0] * 6 + [100.0] * 6, None),  # too few to say
        ([0.004] * 12 + [0.008] * 12, None),  # a scheduler's grain
    ],
)
def test_times_that_lie_far_apart(milliseconds: list[float], said: str | None) -> None:
    side = timing._Side([], [ms / 1e3 for ms in milliseconds], [1.0])
    note = timing.unsteady(timing._timing(side))
    assert note is None if said is None else note is not None and note.startswith(said)


@pytest.mark.usefixtures("without_footprints")
def test_a_trace_of_both_sides(made: Path, tmp_path: Path) -> None:
    """Node for node under the names of operators, as Perfetto reads it."""
    path = tmp_path / "trace.json"
    ran = run("bench", made, "--profile", path, "--iterations", "3")
    assert ran.exit_code == 0, ran.output
    events = json.loads(path.read_text())["traceEvents"]
    sides = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert sides == {0: "before", 1: "artifact"}
    nodes = {(e["pid"], e["name"]): e for e in events if "node" in e.get("args", {})}
    assert all(e["ph"] == "X" and e["dur"] >= 0 and e["ts"] > 0 for e in nodes.values())
    of_sides = [{name for pid, name in nodes if pid == number} for number in sides]
    assert "Tanh" in of_sides[0] and of_sides[1] <= {node.op_type for node in onnx.load(made / "model.onnx").graph.node}
    assert of_sides[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "."], "is a folder; give the file"),
        (["--profile", "none/trace.json"], "there is no folder"),
        (["--profile", "trace.json", "--threads", "1,2"], "--profile is of one size and one caller"),
    ],
)
def test_a_trace_that_cannot_be(made: Path, arguments: list[str], message: str) -> None:
    assert_refused(run("bench", made, *arguments), message)
