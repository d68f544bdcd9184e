"""A model whose run does not end: every command that runs it ends in time, says why with code 3, and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import onnxopt
from onnxopt import leftovers
from onnxopt.errors import NotVerifiedError, UsageError
from onnxopt.runtime import footprint, sessions, time_limit
from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.configuration import configuration_for
from onnxopt.runtime.time_limit import Limit, TimeIsUp, limit_of, limited, runs_end_within
from onnxopt.verification.sampling import edges
from tests.support.command import assert_refused, run
from tests.support.hostile.endless_models import long_operator, loop
from tests.support.small_models import CHAIN, write

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30.0  # within which a command with --timeout 0.3 ends on a busy machine


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.mark.parametrize("more", [(), ("--precision", "float16")])
@pytest.mark.parametrize("constant", [False, True])
def test_optimize_ends_in_time(tmp_path: Path, temporary: Path, constant: bool, more: tuple[str, ...]) -> None:
    """Also where the Loop could be folded: nobody runs it without a limit."""
    model, began = loop(tmp_path / "loop.onnx", constant=constant), time.monotonic()
    made = run("optimize", model, "-o", tmp_path / "artifact", "--arch", "none", "--timeout", "0.3", *more)
    assert_refused(made, "loop.onnx", "did not end within 0.3 s", "--timeout", code=3)
    assert time.monotonic() - began < SECONDS
    assert not list(temporary.glob("onnxopt*")) and sorted(p.name for p in tmp_path.iterdir()) == [
        "loop.onnx",
        "temporary",
    ]


@pytest.mark.usefixtures("library")
def test_every_other_command_ends_in_time(tmp_path: Path, temporary: Path) -> None:
    model, artifact = loop(tmp_path / "loop.onnx"), tmp_path / "artifact"
    onnxopt.optimize(model, artifact, archs=(), verify=False)
    before, began = sorted(tmp_path.rglob("*")), time.monotonic()
    for command in (
        ("bench", artifact),
        ("tune", artifact),
        ("quantize", model, "-o", tmp_path / "q.onnx", "--format", "int4", "--block-size", "16"),
    ):
        assert_refused(run(*command, "--timeout", "0.3"), "did not end within 0.3 s", "--timeout", code=3)
    verified = run("verify", model, artifact, "--timeout", "0.3")
    assert verified.exit_code == 3 and "did not end within 0.3 s" in verified.stdout
    with pytest.raises(NotVerifiedError, match=r"did not end within 0\.3 s"):
        onnxopt.quality(model, artifact, timeout=0.3)
    assert time.monotonic() - began < SECONDS
    assert sorted(p for p in tmp_path.rglob("*") if temporary not in p.parents) == [
        p for p in before if temporary not in p.parents
    ]
    assert not list(temporary.glob("onnxopt*"))


@pytest.mark.usefixtures("library")
def test_a_batch_goes_on(tmp_path: Path) -> None:
    loop(tmp_path / "loop.onnx")
    write(tmp_path / "z.onnx", CHAIN)
    config = tmp_path / "batch.toml"
    config.write_text('[defaults]\narchs = []\ntimeout = 0.3\n[[models]]\npath = "*.onnx"\n')
    made = onnxopt.batch(config, tmp_path / "out", jobs=1)
    assert [outcome.exit_code for outcome in made.models] == [3, 0]
    assert "did not end within 0.3 s" in made.models[0].error


@pytest.mark.usefixtures("library")
def test_inputs_that_it_does_not_end_with_are_skipped(tmp_path: Path) -> None:
    made = onnxopt.optimize(loop(tmp_path / "loop.onnx", ends=True), tmp_path / "artifact", archs=(), timeout=1.0)
    report = made.manifest.verify
    assert report.status == "passed" and report.checks
    slow = [row for row in report.skipped if "did not end within 1 s" in row.reason]
    assert len(slow) == 1 and edges.ZEROS in slow[0].case


def test_a_long_operator_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime cannot end it; the caller goes on."""
    monkeypatch.setattr(time_limit, "GRACE", 0.05)
    options, began = sessions.run_options(), time.monotonic()
    with runs_end_within(Limit(0.1, True)), pytest.raises(TimeIsUp, match=r"within 0\.1 s"):
        limited(lambda: time.sleep(20.0), options, leave=True)
    assert time.monotonic() - began < 10.0 and options.terminate
    assert leftovers.still_running.is_set()
    leftovers.still_running.clear()


def test_the_command_ends_with_a_long_operator(tmp_path: Path) -> None:
    """Its process does not wait for the run that it left, and ends as it would else."""
    program = (
        "import sys; from onnxopt.__main__ import run; from onnxopt.runtime import time_limit\n"
        "time_limit.GRACE = 0.1; sys.argv[0] = 'onnxopt'; run()"
    )
    call = ["optimize", long_operator(tmp_path / "boxes.onnx"), "-o", tmp_path / "out", "--arch", "none", "-q"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, call), "--timeout", "0.2"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 3 and "one run did not end within 0.2 s" in done.stderr, done.stderr
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert time.monotonic() - began < SECONDS
    assert [path.name for path in tmp_path.iterdir()] == ["boxes.onnx"]


def test_on_a_gpu_a_run_is_ended_from_another_thread(tmp_path: Path) -> None:
    session = sessions.open_session(loop(tmp_path / "loop.onnx"))
    options = sessions.run_options()
    with runs_end_within(Limit(0.2, True)), pytest.raises(TimeIsUp):
        limited(lambda: session.run(None, {"x": np.ones(4, np.float32)}, options), options, leave=False)


def test_other_errors_and_results_pass() -> None:
    options = ort.RunOptions()
    for leave in (True, False):
        with runs_end_within(Limit(30.0, True)):
            assert limited(lambda: 3, options, leave=leave) == 3
            with pytest.raises(ZeroDivisionError):
                limited(lambda: 1 // 0, options, leave=leave)
    assert not options.terminate


def test_the_default_grows_with_the_model_and_waits_on_a_busy_machine() -> None:
    assert limit_of(None, 0) == Limit(30.0, False) and limit_of(None, 400_000_000) == Limit(70.0, False)
    assert limit_of(2.0, 400_000_000) == Limit(2.0, True)
    default, asked = Limit(30.0, False), Limit(30.0, True)
    assert not default.is_over(29.0, 29.0) and default.is_over(30.0, 30.0)
    assert not default.is_over(60.0, 3.0) and default.is_over(120.0, 3.0)
    assert asked.is_over(30.0, 0.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(UsageError, match="timeout must be a number of seconds above 0"):
        onnxopt.verify(tmp_path / "model.onnx", timeout=seconds)


def test_a_timed_run_that_does_not_end(tmp_path: Path) -> None:
    """As bench, tune and doctor repeat it: told to end from another thread, and other runs go on."""
    session = sessions.open_session(loop(tmp_path / "loop.onnx", ends=True))
    feeds = {"x": np.ones(4, np.float32)}
    with runs_end_within(Limit(0.2, True)):
        endless, usual = (BoundRun(session, feeds, sessions.CPU) for _ in range(2))
    endless.refill({"x": np.zeros(4, np.float32)})
    with pytest.raises(sessions.RunTimeout, match=r"within 0\.2 s"):
        endless()
    assert usual() > 0


# Runs that bind buffers are inside native code for ever, as they are in a kernel that hangs. Of the command that
# follows: the doctor of a machine with a GPU is that of one without, which tries everything.
HANGS = """
import ctypes, sys
from onnxopt.__main__ import run
from onnxopt.runtime import configuration, footprint, time_limit
from onnxopt.runtime.sessions import CPU
from onnxopt.tools.doctor import graphs
time_limit.GRACE = 0.2
opened = configuration.open_session
class Hanging:
    def __init__(self, session): self._session = session
    def __getattr__(self, name): return getattr(self._session, name)
    def run_with_iobinding(self, binding, options=None): ctypes.CDLL(None).sleep(600)
configuration.open_session = lambda *a, cuda_graph=False: Hanging(opened(*a))
footprint.measure = lambda *a, **k: footprint.Footprint()
graphs.CUDA = CPU
sys.argv[0] = "onnxopt"
run()
"""


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("command", ["bench", "doctor"])
def test_a_kernel_that_hangs_ends_the_command(tmp_path: Path, temporary: Path, command: str) -> None:
    artifact = onnxopt.optimize(write(tmp_path / "chain.onnx", CHAIN), tmp_path / "artifact", archs=()).path
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANGS, command, artifact, "--timeout", "0.3", "--json"],
        capture_output=True, text=True, cwd=ROOT, timeout=4 * SECONDS, env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "did not end within 0.3 s" in line and "--timeout" in line and "hangs" in line
    assert json.loads(done.stdout)["error"]["exit_code"] == 3
    assert time.monotonic() - began < SECONDS and not list(temporary.glob("onnxopt*"))


def test_a_program_of_the_user_is_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is not ours to end."""
    monkeypatch.setattr(time_limit, "GRACE", 0.05)
    options = sessions.run_options()
    with pytest.warns(time_limit.Hangs, match=r"within 0\.1 s.*does not return"), runs_end_within(Limit(0.1, True)):
        limited(lambda: time.sleep(0.5), options, leave=False)


@pytest.mark.usefixtures("library")
def test_a_process_of_its_own_has_the_limit(tmp_path: Path) -> None:
    model = loop(tmp_path / "loop.onnx")
    artifact = onnxopt.optimize(model, tmp_path / "artifact", archs=(), verify=False).path
    feeds, chosen = {"x": np.ones(4, np.float32)}, configuration_for(artifact, sessions.CPU)
    with runs_end_within(Limit(0.2, True)), pytest.raises(sessions.RunError, match=r"did not end within 0\.2 s"):
        footprint.measure(model, None, artifact, chosen, feeds)
