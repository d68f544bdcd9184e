"""tune: what is kept is right and faster, what is known survives a kill, and the artifact stays whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact import minisign, signing
from onnxopt.artifact.folder import hash_file
from onnxopt.errors import ArtifactError, UsageError, VerificationError
from onnxopt.runtime import providers, sessions
from onnxopt.tools import tuning
from onnxopt.tools.cli import main
from onnxopt.tools.commands.tune import parse_seconds
from onnxopt.tools.tuning import knobs, rounds, search
from onnxopt.tools.tuning.oracle import Verdict
from tests.support import artifacts
from tests.support.small_models import CHAIN, RANDOM, write

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture
def made(artifact: Path) -> Path:
    return artifacts.make(artifact)


@pytest.fixture
def few_knobs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let tune try these knobs alone."""

    def use(*chosen: knobs.AnyKnob) -> None:
        monkeypatch.setattr("onnxopt.tools.tuning.flow.knobs", lambda *_, **__: list(chosen))

    return use


ARENA = knobs.Knob("session_options", "enable_cpu_mem_arena", (True, False), True)
SPINNING = knobs.Knob("session_config", "session.intra_op.allow_spinning", ("1", "0"), "1")


# --- end to end, on the CPU ------------------------------------------------------------------------------------------


def tune(path: Path, **options: Any) -> tuning.Result:
    return tuning.tune(path, provider=sessions.CPU, **{"budget": 6.0, **options})


def assert_whole(path: Path) -> None:
    """The artifact opens, every hash fits, and it computes what the plain graph does."""
    random = np.random.default_rng(0)
    shapes = {"x": (5, 8), "bias": (8,), "weight": (8, 8)}
    given = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    ours = onnxopt.load(path, configuration="cpu").run(None, given)[0]
    plain = sessions.open_session(path / "model.onnx").run(None, given)[0]
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5)


def pretend_times(monkeypatch: pytest.MonkeyPatch, faster: Callable[[int], bool]) -> list[rounds.Comparison]:
    """Comparisons come out as `faster` says of their number; how fast anything really is lies outside of a test."""
    made: list[rounds.Comparison] = []

    def compare(*_: Any, **__: Any) -> rounds.Comparison:
        ratio = 1.25 if faster(len(made)) else 1.0
        made.append(rounds.Comparison(ratio, ratio - 0.001, ratio + 0.001, 1.0, 1.0 / ratio, 5))
        return made[-1]

    monkeypatch.setattr(rounds, "compare", compare)
    return made


def test_the_fastest_is_written_with_its_measurements(
    made: Path, few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_knobs(ARENA, SPINNING)
    # 0: the noise. 1: the arena. 2: spinning. 3: spinning again, on the new settings, and so on; last: rule-made.
    pretend_times(monkeypatch, lambda k: k in (1, 3))
    result = tune(made)
    assert (result.status, result.complete, result.file) == ("faster", True, "providers/cpu.json")
    assert result.changes == (tuning.OptionChange("enable_cpu_mem_arena", None, False, 1.25),)
    data = providers.read(made, "cpu")
    assert data["session_options"]["enable_cpu_mem_arena"] is False
    assert data["why"]["enable_cpu_mem_arena"].startswith("measured: 1.250 times as fast as ONNX Runtime's default")
    assert data["tuned"]["comparisons"]["plain"]["ratio"] == 1.25
    assert [t["outcome"] for t in data["tuned"]["trials"]] == ["faster", "not faster"]
    assert not list(made.parent.glob("*.tune-*"))  # complete: nothing to resume
    assert_whole(made)


def test_tuning_again_begins_with_the_rules(
    made: Path, few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule_made = providers.read(made, "cpu")
    few_knobs(ARENA)
    pretend_times(monkeypatch, lambda k: k > 0)
    assert tune(made).changes
    few_knobs(SPINNING)
    pretend_times(monkeypatch, lambda _: False)
    assert tune(made).status == "unchanged"
    data = providers.read(made, "cpu")
    assert {k: v for k, v in data.items() if k != "tuned"} == rule_made
    assert_whole(made)


def test_what_is_not_confirmed_is_not_kept(
    made: Path, few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_knobs(ARENA)
    pretend_times(monkeypatch, lambda k: k == 1)  # faster when tried, not in the last comparison
    result = tune(made)
    assert (result.status, result.changes) == ("unchanged", ())
    assert "not faster than the rule-made file at the end" in result.notes[0]
    assert "enable_cpu_mem_arena" not in providers.read(made, "cpu")["session_options"]


def test_a_wrong_answer_is_never_kept(
    made: Path, few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_knobs(ARENA)
    pretend_times(monkeypatch, lambda _: True)
    verdicts = iter([Verdict(0.1), Verdict(3.0, "output y: 3 times the limit")])
    monkeypatch.setattr("onnxopt.tools.tuning.oracle.Oracle.check", lambda *_: next(verdicts))
    result = tune(made)
    assert result.changes == ()
    trial = providers.read(made, "cpu")["tuned"]["trials"][0]
    assert (trial["outcome"], trial["reason"], trial["ratio"]) == ("wrong", "output y: 3 times the limit", None)


def test_the_oracle_sees_a_wrong_session(made: Path, tmp_path: Path) -> None:
    from onnxopt.runtime.bound_run import BoundRun
    from onnxopt.tools.tuning.oracle import Oracle

    oracle = Oracle(made / "model.onnx", sessions.CPU, {}, tmp_path)
    for text, right in ((CHAIN, True), (CHAIN.replace("Sub(c, a)", "Sub(a, c)"), False)):
        session = sessions.open_session(write(tmp_path / "other.onnx", text))
        verdict = oracle.check(session, BoundRun(session, oracle.feeds, sessions.CPU))
        assert (verdict.excess is not None and verdict.excess <= oracle.allowed) is right
        assert right or "output y" in verdict.reason


def test_what_ort_refuses_is_recorded_and_the_rest_goes_on(
    made: Path, few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_times(monkeypatch, lambda _: False)
    few_knobs(knobs.Knob("session_config", "session.intra_op_thread_affinities", ("", "nonsense"), ""), ARENA)
    result = tune(made, budget=20.0)
    outcomes = {t["knob"]: t["outcome"] for t in providers.read(made, "cpu")["tuned"]["trials"]}
    assert outcomes["session.intra_op_thread_affinities"] == "failed"
    assert outcomes["enable_cpu_mem_arena"] in ("faster", "not faster")
    assert result.complete
    assert_whole(made)


def test_ctrl_c_keeps_what_is_known_and_the_next_run_goes_on(
    made: Path, few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_knobs(ARENA, SPINNING)
    pretend_times(monkeypatch, lambda k: k == 1)
    seen: list[str] = []

    def interrupt(_done: int, _total: int, text: str) -> None:
        seen.append(text)
        if "enable_cpu_mem_arena=False" in text:
            raise KeyboardInterrupt

    result = tune(made, progress=interrupt)
    assert (result.status, result.complete, len(result.changes)) == ("interrupted", False, 1)
    state = json.loads(next(made.parent.glob("artifact.tune-cpu.json")).read_text())
    assert [t["outcome"] for t in state["trials"]] == ["faster"]
    pretend_times(monkeypatch, lambda k: k == 1)
    again = tune(made)
    assert again.resumed == 1
    assert (again.status, again.changes[0].option) == ("faster", "enable_cpu_mem_arena")
    assert_whole(made)


def test_a_kill_loses_at_most_the_trial_under_way(made: Path) -> None:
    command = [sys.executable, "-m", "onnxopt", "tune", str(made), "--budget", "10s", "--provider", sessions.CPU]
    state_file = made.parent / "artifact.tune-cpu.json"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    known: list[Any] = []
    deadline = time.monotonic() + 50
    while not known and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
        if state_file.exists():
            known = json.loads(state_file.read_text())["trials"]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert known
    assert_whole(made)
    result = tune(made, budget=1.0)
    assert result.resumed >= len(known)
    assert providers.read(made, "cpu")["tuned"]["trials"][: len(known)] == known
    assert_whole(made)


def test_another_case_does_not_take_these_trials(
    made: Path, few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_knobs(ARENA, SPINNING)
    monkeypatch.setattr(search.Search, "run", lambda self: self._try(ARENA, False, "s") and False)
    pretend_times(monkeypatch, lambda _: False)
    assert not tune(made).complete
    again = tune(made, shapes={"batch": (9,)})
    assert again.resumed == 0
    assert "belongs to another model, machine or release" in again.notes[0]


def test_a_signature_that_no_longer_fits_is_removed(
    made: Path, few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_knobs()
    pretend_times(monkeypatch, lambda _: False)
    key = minisign.generate_key()
    signing.sign(made, key)
    assert "manifest.json.minisig was removed" in tune(made).notes[-1]
    assert not list(made.glob("manifest.json.*"))
    with pytest.raises(ArtifactError, match="is not signed"):
        onnxopt.load(made, public_key=key.public.to_text().splitlines()[1])


def test_tune_signs_what_it_changed(
    made: Path, few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_knobs(ARENA)
    pretend_times(monkeypatch, lambda k: k > 0)
    key = minisign.generate_key()
    signing.sign(made, minisign.generate_key())
    assert tune(made, sign=key).notes[-1] == f"signed again with key {key.public.name}"
    onnxopt.load(made, public_key=key.public.to_text().splitlines()[1])
    assert_whole(made)


def test_an_artifact_that_is_wrong_itself_is_not_tuned(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxopt.tools.tuning.oracle.Oracle.check", lambda *_: Verdict(1e4, "output y: off by 9"))
    with pytest.raises(VerificationError, match="differ from those without: output y: off by 9"):
        tune(made)


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_damaged_artifact_is_not_tuned(made: Path) -> None:
    with (made / "model.onnx").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        tune(made)


def test_random_numbers_cannot_be_compared(tmp_path: Path) -> None:
    made = onnxopt.optimize(write(tmp_path / "random.onnx", RANDOM), tmp_path / "random", archs=()).path
    with pytest.raises(UsageError, match="draws random numbers"):
        tune(made)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_where_nothing_may_be_written(made: Path) -> None:
    (made / "providers").chmod(0o555)
    with pytest.raises(UsageError, match="may not"):
        tune(made)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5m", 300), ("1h", 3600), ("2", 2), ("0.5m", 30)])
def test_budgets(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5 minutes", "-1s", "m", "1d"])
def test_no_budgets(text: str) -> None:
    with pytest.raises(UsageError, match="expected a time"):
        parse_seconds(text)


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    few_knobs(ARENA)
    pretend_times(monkeypatch, lambda k: k > 0)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("quick")
def test_the_command_says_what_it_found(made: Path) -> None:
    done = CliRunner().invoke(main, ["tune", str(made), "--provider", sessions.CPU, "--shape", "batch=16"])
    assert done.exit_code == 0, done.output
    assert "batch=16, seed 0" in done.stdout
    assert "enable_cpu_mem_arena: ONNX Runtime's default -> False, 1.250 times as fast" in done.stdout
    assert done.stdout.splitlines()[-1] == "wrote providers/cpu.json"
    assert done.stderr == ""


@pytest.mark.usefixtures("quick")
def test_json_for_machines(made: Path) -> None:
    done = CliRunner().invoke(main, ["tune", str(made), "--provider", sessions.CPU, "--json"])
    found = json.loads(done.stdout)
    assert found["status"] == "faster"
    assert found["comparisons"]["plain"]["ratio"] == 1.25
    assert manifests.load(made).files["providers/cpu.json"] == hash_file(made / "providers" / "cpu.json")


@pytest.mark.parametrize("budget", ["0", "soon"])
def test_a_bad_budget_is_one_line(made: Path, budget: str) -> None:
    done = CliRunner().invoke(main, ["tune", str(made), "--budget", budget])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
