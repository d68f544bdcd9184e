"""tune: what is kept is right and faster, what is known survives a kill, and the artifact stays whole."""

from __future__ import annotations

import itertools
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
import onnx.parser
import onnx_ir as ir
import pytest
from click.testing import CliRunner
from small_models import CHAIN, HEADER, RANDOM, write

import onnxopt
from onnxopt import execution, package, providers, tuning
from onnxopt import manifest as manifests
from onnxopt.cli import main
from onnxopt.commands.tune import parse_seconds
from onnxopt.errors import ArtifactError, UsageError, VerificationError
from onnxopt.providers import facts, rules
from onnxopt.tuning import knobs, rounds, search
from onnxopt.tuning.oracle import Verdict
from onnxopt.tuning.state import State, Trial

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture
def made(tmp_path: Path, artifact: Path) -> Path:
    return onnxopt.optimize(write(tmp_path / "chain.onnx", CHAIN), artifact, archs=()).path


@pytest.fixture
def few_knobs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let tune try these knobs alone."""

    def use(*chosen: knobs.AnyKnob) -> None:
        monkeypatch.setattr("onnxopt.tuning.flow.knobs", lambda *_, **__: list(chosen))

    return use


ARENA = knobs.Knob("session_options", "enable_cpu_mem_arena", (True, False), True)
SPINNING = knobs.Knob("session_config", "session.intra_op.allow_spinning", ("1", "0"), "1")
UNKNOWN = knobs.Knob("session_options", "no_such_option", (0, 1), 0)


# --- is it faster ----------------------------------------------------------------------------------------------------


def test_a_clear_difference_is_seen_and_noise_is_not() -> None:
    clear = rounds.summarize([2.0, 2.1, 1.9, 2.0, 2.05], [1.0, 1.05, 0.95, 1.0, 1.02])
    assert clear.ratio == pytest.approx(2.0, rel=0.01)
    assert clear.faster(0.01) and not clear.slower(0.01)
    noise = rounds.summarize([1.0, 1.2, 0.9, 1.1, 1.0], [1.1, 0.9, 1.0, 1.2, 0.95])
    assert not noise.faster(0.005) and not noise.slower(0.005)
    assert (noise.low, noise.high) == (pytest.approx(0.9), pytest.approx(4 / 3))
    small = rounds.summarize([1.004] * 9, [1.0] * 9)
    assert not small.faster(0.005)  # certain, and not worth a setting


def test_the_interval_is_the_sign_tests() -> None:
    assert [rounds._left_out(n) for n in (3, 7, 8, 11, 15)] == [0, 0, 0, 1, 2]


def test_sessions_are_timed_in_turn_and_each_begins_as_often() -> None:
    order: list[str] = []

    def timed(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    found = rounds.compare(lambda: timed("a", 0.02), lambda: timed("b", 0.01), most=6)
    assert found.ratio == pytest.approx(2.0)
    assert found.rounds == 6
    blocks = [len(list(group)) for _, group in itertools.groupby(order)]
    assert blocks[-6:] == [10, 10, 10, 10, 10, 5]  # a b, b a, a b, ...: five runs each, the first not counted


def test_a_hopeless_value_is_given_up_early() -> None:
    for seconds, expected in ((0.015, rounds._FEWEST), (0.05, rounds._LEAST)):
        found = rounds.compare(lambda: 0.01, lambda s=seconds: s, noise=0.01)
        assert found.rounds == expected
        assert found.slower(0.01)


# --- what is tried ---------------------------------------------------------------------------------------------------


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEADER + text))


def names(text: str, provider: str = execution.CUDA) -> set[str]:
    return {k.name for k in knobs.knobs(facts.of(model(text)), provider, library=True)}


def test_only_what_matters_for_the_model_is_tried() -> None:
    convolution = names("c (float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[1, 4, 6, 6] y) { y = Conv(x, w) }")
    assert {"prefer_nhwc", "cudnn_conv_algo_search", "fuse_conv_bias", "use_tf32", "onnxopt.disable"} <= convolution
    assert "use_tf32" not in names(
        "c (float16[1, 3, 8, 8] x, float16[4, 3, 3, 3] w) => (float16[1, 4, 6, 6] y) { y = Conv(x, w) }"
    )
    assert not convolution & {"sdpa_kernel", "MatMulAddFusion", "cudnn_conv1d_pad_to_nc1d", "tunable_op"}
    product = names(CHAIN)
    assert {"use_tf32", "tunable_op", "graph_optimization_level", "MatMulAddFusion"} <= product
    assert "prefer_nhwc" not in product
    assert "intra_op_num_threads" in names(CHAIN, execution.CPU)
    assert "use_tf32" not in names(CHAIN, execution.CPU)


@pytest.mark.parametrize("provider", [execution.CPU, execution.CUDA])
def test_every_knob_changes_what_it_says_and_nothing_else(provider: str) -> None:
    of = facts.of(model(CHAIN))
    base = rules.cpu() if provider == execution.CPU else rules.cuda(of)
    for knob in knobs.knobs(of, provider, library=True):
        assert knob.current(base) in knob.values
        for value in knob.values:
            changed = knob.apply(base, value)
            assert knob.current(changed) == value
            assert knob.apply(changed, knob.current(base)).keys() == base.keys()
            same = {
                s: {k: v for k, v in changed[s].items() if k in base[s]} for s in search.SECTIONS if s != knob.section
            }
            assert same == {s: base[s] for s in search.SECTIONS if s != knob.section}


def test_optimizers_are_left_out_as_one_list() -> None:
    first, second = knobs.Optimizer("A"), knobs.Optimizer("B")
    both = second.apply(first.apply(rules.cpu(), "off"), "off")
    assert both["session_config"][knobs.DISABLED] == "A;B"
    assert first.apply(both, "on")["session_config"][knobs.DISABLED] == "B"
    assert knobs.DISABLED not in second.apply(first.apply(both, "on"), "on")["session_config"]


# --- what is remembered ----------------------------------------------------------------------------------------------


def test_trials_survive_and_belong_to_their_key(tmp_path: Path) -> None:
    state = State(tmp_path / "state.json", {"model": 1})
    state.noise = 0.02
    state.begin("a", 1, "s")
    state.add(Trial("a", 1, "s", "faster", ratio=1.2))
    again = State(tmp_path / "state.json", {"model": 1})
    assert again.known("a", 1, "s") == Trial("a", 1, "s", "faster", ratio=1.2)
    assert again.known("a", 1, "other settings") is None
    assert (again.resumed, again.noise, again.stale) == (1, 0.02, False)
    other = State(tmp_path / "state.json", {"model": 2})
    assert (other.resumed, other.stale) == (0, True)


def test_what_took_the_process_down_twice_is_not_tried_again(tmp_path: Path) -> None:
    for starts in (1, 2):
        state = State(tmp_path / "state.json", {})
        assert state.known("a", 1, "s") is None, starts
        state.begin("a", 1, "s")  # and the process ends
    found = State(tmp_path / "state.json", {}).known("a", 1, "s")
    assert found is not None and found.outcome == "failed"
    assert "ended the process" in found.reason


def test_what_was_stopped_from_outside_may_begin_again(tmp_path: Path) -> None:
    for _ in range(3):
        state = State(tmp_path / "state.json", {})
        assert state.known("a", 1, "s") is None
        state.begin("a", 1, "s")
        state.give_up("a", 1, "s")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 0}', '{"schema": 1}'])
def test_a_damaged_state_is_not_used(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    state = State(tmp_path / "state.json", {})
    assert (state.trials, state.stale) == ([], True)


# --- end to end, on the CPU ------------------------------------------------------------------------------------------


def tune(path: Path, **options: Any) -> tuning.Result:
    return tuning.tune(path, provider=execution.CPU, **{"budget": 6.0, **options})


def assert_whole(path: Path) -> None:
    """The artifact opens, every hash fits, and it computes what the plain graph does."""
    random = np.random.default_rng(0)
    shapes = {"x": (5, 8), "bias": (8,), "weight": (8, 8)}
    given = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    ours = onnxopt.load(path, configuration="cpu").run(None, given)[0]
    plain = execution.open_session(path / "model.onnx").run(None, given)[0]
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
    assert result.changes == (tuning.Change("enable_cpu_mem_arena", None, False, 1.25),)
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
    assert "not faster than the rule-made file in the end" in result.notes[0]
    assert "enable_cpu_mem_arena" not in providers.read(made, "cpu")["session_options"]


def test_a_wrong_answer_is_never_kept(
    made: Path, few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_knobs(ARENA)
    pretend_times(monkeypatch, lambda _: True)
    verdicts = iter([Verdict(0.1), Verdict(3.0, "output y: 3 times the limit")])
    monkeypatch.setattr("onnxopt.tuning.oracle.Oracle.check", lambda *_: next(verdicts))
    result = tune(made)
    assert result.changes == ()
    trial = providers.read(made, "cpu")["tuned"]["trials"][0]
    assert (trial["outcome"], trial["reason"], trial["ratio"]) == ("wrong", "output y: 3 times the limit", None)


def test_the_oracle_sees_a_wrong_session(made: Path, tmp_path: Path) -> None:
    from onnxopt.bound_run import BoundRun
    from onnxopt.tuning.oracle import Oracle

    oracle = Oracle(made / "model.onnx", execution.CPU, {}, tmp_path)
    for text, right in ((CHAIN, True), (CHAIN.replace("Sub(c, a)", "Sub(a, c)"), False)):
        session = execution.open_session(write(tmp_path / "other.onnx", text))
        verdict = oracle.check(session, BoundRun(session, oracle.feeds, execution.CPU))
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
    command = [sys.executable, "-m", "onnxopt", "tune", str(made), "--budget", "60s", "--provider", execution.CPU]
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


def test_a_signature_that_no_longer_fits_is_told_about(
    made: Path, few_knobs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_knobs()
    pretend_times(monkeypatch, lambda _: False)
    (made / f"{manifests.FILE}.minisig").write_text("signature")
    assert tune(made).notes[-1].endswith("sign it again")


def test_an_artifact_that_is_wrong_itself_is_not_tuned(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxopt.tuning.oracle.Oracle.check", lambda *_: Verdict(1e4, "output y: off by 9"))
    with pytest.raises(VerificationError, match="computes something else than without: output y: off by 9"):
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
    done = CliRunner().invoke(main, ["tune", str(made), "--provider", execution.CPU, "--shape", "batch=16"])
    assert done.exit_code == 0, done.output
    assert "batch=16, seed 0" in done.stdout
    assert "enable_cpu_mem_arena: ONNX Runtime's default -> False, 1.250 times as fast" in done.stdout
    assert done.stdout.splitlines()[-1] == "wrote providers/cpu.json"
    assert done.stderr == ""


@pytest.mark.usefixtures("quick")
def test_json_for_machines(made: Path) -> None:
    done = CliRunner().invoke(main, ["tune", str(made), "--provider", execution.CPU, "--json"])
    found = json.loads(done.stdout)
    assert found["status"] == "faster"
    assert found["comparisons"]["plain"]["ratio"] == 1.25
    assert manifests.load(made).files["providers/cpu.json"] == package.hash_file(made / "providers" / "cpu.json")


@pytest.mark.parametrize("budget", ["0", "soon"])
def test_a_bad_budget_is_one_line(made: Path, budget: str) -> None:
    done = CliRunner().invoke(main, ["tune", str(made), "--budget", budget])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
