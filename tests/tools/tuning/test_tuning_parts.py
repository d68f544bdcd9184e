"""The parts of tune: whether one session is faster, which options are tried, and what is remembered of trials."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnx.parser
import onnx_ir as ir
import pytest

from onnxopt.kinds import KINDS
from onnxopt.runtime import sessions
from onnxopt.runtime.providers import facts, rules
from onnxopt.tools.tuning import kernels, knobs, rounds, search
from onnxopt.tools.tuning.state import State, Trial
from tests.support.small_models import CHAIN, HEADER

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
    assert [rounds._outliers(n) for n in (3, 7, 8, 11, 15)] == [0, 0, 0, 1, 2]


def test_sessions_are_timed_in_turn_and_each_begins_as_often() -> None:
    order: list[str] = []

    def timed(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    found = rounds.compare(lambda: timed("a", 0.02), lambda: timed("b", 0.01), limit=6)
    assert found.ratio == pytest.approx(2.0)
    assert found.rounds == 6
    blocks = [len(list(group)) for _, group in itertools.groupby(order)]
    assert blocks[-6:] == [10, 10, 10, 10, 10, 5]  # a b, b a, a b, ...: five runs each, the first not counted


def test_a_hopeless_value_is_given_up_early() -> None:
    for seconds, expected in ((0.015, rounds._MIN), (0.05, rounds._MIN)):
        found = rounds.compare(lambda: 0.01, lambda s=seconds: s, noise=0.01)
        assert found.rounds == expected
        assert found.slower(0.01)


# --- what is tried ---------------------------------------------------------------------------------------------------


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEADER + text))


def names(text: str, provider: str = sessions.CUDA) -> set[str]:
    return {k.name for k in knobs.knobs(facts.of(model(text)), provider, kinds=["gemm"])}


def test_only_what_matters_for_the_model_is_tried() -> None:
    convolution = names("c (float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[1, 4, 6, 6] y) { y = Conv(x, w) }")
    assert {
        "nhwc_and_fuse_bias",
        "prefer_nhwc",
        "cudnn_conv_algo_search",
        "fuse_conv_bias",
        "use_tf32",
        "onnxopt.disable",
    } <= convolution
    assert "use_tf32" not in names(
        "c (float16[1, 3, 8, 8] x, float16[4, 3, 3, 3] w) => (float16[1, 4, 6, 6] y) { y = Conv(x, w) }"
    )
    assert not convolution & {"sdpa_kernel", "MatMulAddFusion", "cudnn_conv1d_pad_to_nc1d", "tunable_op"}
    product = names(CHAIN)
    assert {"use_tf32", "tunable_op", "graph_optimization_level", "MatMulAddFusion"} <= product
    assert "prefer_nhwc" not in product
    assert "intra_op_num_threads" in names(CHAIN, sessions.CPU)
    assert "use_tf32" not in names(CHAIN, sessions.CPU)


@pytest.mark.parametrize("provider", [sessions.CPU, sessions.CUDA])
def test_every_knob_changes_what_it_says_and_nothing_else(provider: str) -> None:
    of = facts.of(model(CHAIN))
    base = (rules.cpu(of) if provider == sessions.CPU else rules.cuda(of)) | {kernels.SECTION: dict(kernels.RULES)}
    for knob in knobs.knobs(of, provider, kinds=["gemm", "pool"]):
        assert knob.current(base) in knob.values
        for value in knob.values:
            changed = knob.apply(base, value)
            assert knob.current(changed) == value
            assert knob.apply(changed, knob.current(base)).keys() == base.keys()
            others = set(search.SECTIONS) - {knob.section} - ({"provider_options"} if "last" in knob.name else set())
            assert {s: {k: v for k, v in changed[s].items() if k in base[s]} for s in others} == {
                s: base[s] for s in others
            }


def test_optimizers_are_left_out_as_one_list() -> None:
    first, second = knobs.optimizer("A"), knobs.optimizer("B")
    both = second.apply(first.apply(rules.cpu(facts.of(model(CHAIN))), "off"), "off")
    assert both["session_config"][knobs.WITHOUT_OPTIMIZERS] == "A;B"
    assert first.apply(both, "on")["session_config"][knobs.WITHOUT_OPTIMIZERS] == "B"
    assert knobs.WITHOUT_OPTIMIZERS not in second.apply(first.apply(both, "on"), "on")["session_config"]


def test_kinds_of_kernels_are_given_back_alone_and_those_of_channels_last_with_their_options() -> None:
    base = rules.cuda(facts.of(model(CHAIN)))
    tried = {
        k.name: k for k in knobs.knobs(facts.of(model(CHAIN)), sessions.CUDA, kinds=["pool", "gemm", "convolution"])
    }
    alone, together = tried["kernels: pool"], tried["kernels: channels last"]
    assert alone.apply(base, "off")["session_config"][sessions.WITHOUT_KINDS] == "pool"
    both = together.apply(tried["kernels: gemm"].apply(base, "off"), "off")
    assert both["session_config"][sessions.WITHOUT_KINDS] == "convolution,gemm,pool"
    assert both["provider_options"]["prefer_nhwc"] == both["provider_options"]["fuse_conv_bias"] == "1"
    assert (alone.current(both), together.current(both), together.current(base)) == ("off", "off", "on")
    assert alone.apply(both, "on")["session_config"][sessions.WITHOUT_KINDS] == "convolution,gemm"
    assert {kind.name for kind in KINDS} >= knobs.CHANNELS_LAST
    for kinds, provider, expected in (
        (["pool"], sessions.CUDA, {"onnxopt.disable"}),
        ([], sessions.CUDA, set()),
        (["pool", "gemm"], sessions.CPU, {"onnxopt.disable", "kernels: pool", "kernels: gemm"}),
    ):
        named = {k.name for k in knobs.knobs(facts.of(model(CHAIN)), provider, kinds=kinds)}
        assert {name for name in named if name.startswith(("kernels", "onnxopt"))} == expected


# --- what is remembered ----------------------------------------------------------------------------------------------


def test_trials_survive_and_belong_to_their_key(tmp_path: Path) -> None:
    state = State(tmp_path / "state.json", {"model": 1})
    state.noise = 0.02
    state.begin("a", 1, "s")
    state.add(Trial("a", 1, "s", "faster", ratio=1.2))
    again = State(tmp_path / "state.json", {"model": 1})
    assert again.earlier("a", 1, "s") == Trial("a", 1, "s", "faster", ratio=1.2)
    assert again.earlier("a", 1, "other settings") is None
    assert (again.resumed, again.noise, again.stale) == (1, 0.02, False)
    other = State(tmp_path / "state.json", {"model": 2})
    assert (other.resumed, other.stale) == (0, True)


def test_what_took_the_process_down_twice_is_not_tried_again(tmp_path: Path) -> None:
    for starts in (1, 2):
        state = State(tmp_path / "state.json", {})
        assert state.earlier("a", 1, "s") is None, starts
        state.begin("a", 1, "s")  # and the process ends
    found = State(tmp_path / "state.json", {}).earlier("a", 1, "s")
    assert found is not None and found.outcome == "failed"
    assert "ended the process" in found.reason


def test_what_was_stopped_from_outside_may_begin_again(tmp_path: Path) -> None:
    for _ in range(3):
        state = State(tmp_path / "state.json", {})
        assert state.earlier("a", 1, "s") is None
        state.begin("a", 1, "s")
        state.give_up("a", 1, "s")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 0}', '{"schema": 1}'])
def test_a_damaged_state_is_not_used(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    state = State(tmp_path / "state.json", {})
    assert (state.trials, state.stale) == ([], True)
