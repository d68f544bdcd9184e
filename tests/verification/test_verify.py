"""verify: what agrees passes, what does not is found, named, and left out where a fusion is to blame."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.errors import NotVerifiedError, UsageError, VerificationError
from onnxopt.fusion.region import Kernel
from onnxopt.graph import normalize, traits
from onnxopt.pipeline import flow
from onnxopt.runtime import sessions
from onnxopt.verification import verify as verification
from onnxopt.verification.bisect import bisect, bisect_in_order
from onnxopt.verification.check import Check
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.reference import NotRunnable
from tests.support.small_models import CHAIN, HEADER, NO_KERNEL, NOTHING_TO_FUSE, RANDOM, TOKENS, write

BF16 = """
<ir_version: 8, opset_import: ["" : 17]>
g (bfloat16[n] x) => (bfloat16[n] y, float[n] z) { y = Identity(x) z = Cast<to = 1>(x) }
"""
MULTIPLE_OF_32 = """
g (float[batch, size] x) => (float[batch, m, 32] y) <int64[3] s = {0, -1, 32}> { y = Reshape(x, s) }
"""


def _cpu(original: Path, optimized: Path, **options: object) -> onnxopt.VerificationReport:
    return onnxopt.verify(original, optimized, providers=[sessions.CPU], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [CHAIN, NOTHING_TO_FUSE, TOKENS, RANDOM, BF16], ids=str.split)
def test_a_model_agrees_with_itself(tmp_path: Path, text: str) -> None:
    model = write(tmp_path / "m.onnx", text)
    report = _cpu(model, model)
    assert report.status == "passed", report.reason
    assert report.checks
    assert all(c.difference is not None and c.difference.max_abs == 0 for c in report.checks)


def test_dynamic_dims_are_tried_at_several_sizes_and_seeds(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", CHAIN)
    cases = {c.case for c in _cpu(model, model).checks}
    assert {"batch=1, seed 0", "batch=2, seed 0", "batch=3, seed 1"} <= cases


def test_shapes_are_pinned(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", TOKENS)
    by_input = {c.case for c in _cpu(model, model, shapes={"ids": (4, 6)}).checks}
    assert by_input >= {f"batch=4, sequence=6, seed {seed}" for seed in range(3)}
    assert all(case.startswith("batch=4, sequence=6, ") for case in by_input)
    by_dim = {c.case for c in _cpu(model, model, shapes={"sequence": (6,)}).checks}
    assert all("sequence=6" in case for case in by_dim)
    assert len(by_dim) > 3
    with pytest.raises(UsageError, match="no such input or dim"):
        _cpu(model, model, shapes={"nothing": (1,)})


def test_sizes_that_the_model_accepts_are_searched_and_the_others_listed(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", MULTIPLE_OF_32)
    report = _cpu(model, model)
    assert report.status == "passed"
    assert {c.case for c in report.checks} >= {"batch=1, size=32, seed 0", "batch=3, size=32, seed 2"}
    assert "batch=1, size=7, seed 0" in {s.case for s in report.skipped}
    assert all(s.reason for s in report.skipped)


def test_a_wrong_constant_is_a_difference(tmp_path: Path) -> None:
    original = write(tmp_path / "a.onnx", CHAIN.replace("Sub(c, a)", "Sub(a, c)"))
    report = _cpu(original, write(tmp_path / "b.onnx", CHAIN))
    assert report.status == "failed"
    assert report.reason.startswith(f"output y ({sessions.CPU} without the library, batch=1, seed 0): off by up to")
    assert all(not c.ok for c in report.failures)


def test_missing_output_dtype_and_input_are_named(tmp_path: Path) -> None:
    original = write(tmp_path / "a.onnx", CHAIN)
    other = write(tmp_path / "b.onnx", TOKENS)
    report = _cpu(original, other)
    assert report.status == "failed"
    assert report.reason.startswith("inputs are ")


def test_what_ort_cannot_run_is_said_not_raised(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", NO_KERNEL)
    report = _cpu(model, model)
    assert report.status == "not_run"
    assert "nowhere" in report.reason


def test_what_cannot_be_verified_is_an_error_and_leaves_nothing(tmp_path: Path, artifact: Path) -> None:
    model = write(tmp_path / "m.onnx", NO_KERNEL)
    with pytest.raises(NotVerifiedError, match=r"cannot be verified.*nowhere.*--no-verify keeps the result unchecked"):
        onnxopt.optimize(model, artifact, archs=())
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    assert onnxopt.optimize(model, artifact, archs=(), verify=False).manifest.verify.status == "skipped"


def test_a_shape_that_the_model_refuses_is_not_verified(tmp_path: Path, artifact: Path) -> None:
    model = write(tmp_path / "m.onnx", MULTIPLE_OF_32)
    with pytest.raises(NotVerifiedError, match="accepted none of the inputs tried"):
        onnxopt.optimize(model, artifact, archs=(), shapes={"size": (33,)})
    assert _cpu(model, model, shapes={"size": (33,)}).status == "not_run"


def test_outputs_that_are_never_there_are_not_verified(tmp_path: Path, artifact: Path) -> None:
    """A model whose only output is an absent optional gives nothing to compare."""
    of_floats = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["n"])
    node = onnx.helper.make_node("Optional", [], ["y"], type=of_floats)
    x = onnx.helper.make_value_info("x", of_floats)
    y = onnx.helper.make_value_info("y", onnx.helper.make_optional_type_proto(of_floats))
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    model = tmp_path / "m.onnx"
    report = _cpu(model, model)
    assert (report.status, report.reason) == ("not_run", "it gives no output that could be compared")


def test_too_large_for_memory_is_said_not_tried(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", CHAIN)
    source = ir.load(model)
    with pytest.raises(onnxopt.OnnxoptError, match="GB of memory"):
        verification.references(ModelFile(model, traits.of(source), 10**15), Coverage(), folder=tmp_path)


@pytest.mark.parametrize("guilty", [set(), {0}, {4}, {1, 6}, set(range(7))])
def test_search_finds_exactly_the_guilty(guilty: set[int]) -> None:
    names = [f"k{i}" for i in range(7)]
    runs = []

    def failure_of(enabled: Sequence[str]) -> Check | None:
        runs.append(enabled)
        bad = [n for n in enabled if int(n[1:]) in guilty]
        return Check("p", True, bad[0], "y", None) if bad else None

    found = bisect(names, failure_of, name=str)
    assert set(found) == {f"k{i}" for i in guilty}
    assert all(found[n].case == n for n in found)


def test_search_blames_the_group_that_fails_only_together() -> None:
    def failure_of(enabled: Sequence[str]) -> Check | None:
        return Check("p", True, "", "y", None) if {"b", "c"} <= set(enabled) else None

    assert set(bisect(list("abcd"), failure_of, name=str)) == set("abcd")


@pytest.mark.parametrize("guilty", ["", "a", "g", "bf", "abcdefg"])
@pytest.mark.parametrize("needed", ["", "a", "ad"])
def test_search_in_order_finds_what_is_wrong_behind_others(guilty: str, needed: str) -> None:
    """An item may only be wrong together with earlier ones. Those are not named, unless they are wrong themselves."""

    def failure_of(enabled: Sequence[str]) -> Check | None:
        bad = [n for n in enabled if n in guilty and set(enabled) >= {m for m in needed if m < n}]
        return Check("p", True, bad[-1], "y", None) if bad else None

    found = bisect_in_order("abcdefg", failure_of)
    alone = [n for n in guilty if not any(m < n for m in guilty if m in needed)]  # without those, it does nothing
    assert sorted(found) == alone
    assert all(check.case == name for name, check in found.items())


@pytest.mark.usefixtures("library")
def test_a_wrong_kernel_is_left_out_and_named(tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is given a program that computes something else for one of the two fused functions."""
    true_json = kernels_json.to_json

    def sabotaged(kernels: Sequence[Kernel], fatbin: bytes | None, *more: str) -> str:
        document = sealed_json.unseal(true_json(kernels, fatbin, *more))
        for kernel in document["kernels"]:
            for row in kernel["code"]:
                row["op"] = {"tanh": "sin"}.get(row["op"], row["op"])
        return sealed_json.seal(document)

    monkeypatch.setattr(kernels_json, "to_json", sabotaged)
    model = write(tmp_path / "m.onnx", CHAIN)
    made = onnxopt.optimize(model, artifact, archs=())
    manifest, counted = made.manifest, made.result
    assert (counted.nodes.after, counted.launches.after, counted.bytes_moved.after) == (6, 6, None)
    assert "1 change that failed was left out" in counted.sentence
    assert [row.ops for row in manifest.left_out] == [("Add", "Tanh", "Mul", "Sub")]
    assert "with the library" in manifest.left_out[0].reason
    assert (manifest.left_out[0].excess or 0) > 1
    assert [k.ops for k in manifest.kernels] == [("Sigmoid", "Mul")]
    assert manifest.verify.status == "passed"
    written = onnx.load(artifact / "model.onnx")
    assert [n.op_type for n in written.graph.node].count("Tanh") == 1
    assert [f.name for f in written.functions] == [manifest.kernels[0].name]


@pytest.mark.usefixtures("library")
def test_models_that_draw_random_numbers_are_compared(tmp_path: Path, artifact: Path) -> None:
    manifest = onnxopt.optimize(write(tmp_path / "m.onnx", RANDOM), artifact, archs=(), external_data=True).manifest
    assert manifest.verify.status == "passed"
    assert {c.library for c in manifest.verify.checks} == {True, False}


def test_wrong_normalization_is_an_error_that_says_so(
    tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_normalize = normalize.normalize

    def wrong(model: ir.Model, **options: int) -> normalize.Normalized:
        result = true_normalize(model, **options)
        table = result.model.graph.initializers["table"]
        table.const_value = ir.tensor(np.zeros((3, 2), np.float32), name="table")
        return result

    monkeypatch.setattr(flow.normalize, "normalize", wrong)
    with pytest.raises(VerificationError, match="the normalized model differs from the original"):
        onnxopt.optimize(write(tmp_path / "m.onnx", TOKENS), artifact, archs=())
    assert not artifact.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_changed_interface_is_an_error(tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_normalize = normalize.normalize

    def wrong(model: ir.Model, **options: int) -> normalize.Normalized:
        result = true_normalize(model, **options)
        result.model.graph.outputs[0].name = "other"
        return result

    monkeypatch.setattr(flow.normalize, "normalize", wrong)
    with pytest.raises(VerificationError, match=r"output y: int64|output y: float32"):
        onnxopt.optimize(write(tmp_path / "m.onnx", TOKENS), artifact, archs=())


def test_precision_and_what_floats_decide(tmp_path: Path) -> None:
    text = """
    g (float16[n] x, int64[n] k) => (int64[n] sum, int64[1] best, int64[1] size) {
      sum = Add(k, k)
      best = ArgMax<axis = 0>(x)
      size = Shape(x)
    }
    """
    found = traits.of(ir.load(write(tmp_path / "m.onnx", text)))
    assert found.precision == "float16"
    assert found.float_decided == {"best"}
    quantized = f"{HEADER} g (float[n] x, float s) => (uint8[n] y) {{ y = QuantizeLinear(x, s) }}"
    assert traits.of(ir.load(write(tmp_path / "q.onnx", quantized))).precision == "quantized"


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_the_originals_session_is_made_ahead_of_small_models_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    model = write(tmp_path / "m.onnx", CHAIN)
    monkeypatch.setattr(verification, "_EARLY_BELOW", limit)
    opened: list[Path] = []
    true_open = sessions.open_session

    def watched(path: Path, **options: Any) -> Any:
        opened.append(path)
        return true_open(path, **options)

    monkeypatch.setattr(sessions, "open_session", watched)
    source = ir.load(model)
    early = verification.open_early(model, traits.of(source), model.stat().st_size, {})
    assert (early is not None) == (limit > 0)
    for times in (1, 2):  # the second time, as when a family of rules is left out, there is none left
        file = ModelFile(model, traits.of(source))
        (reference,) = verification.references(file, Coverage(), folder=tmp_path, providers=[sessions.CPU], early=early)
        assert opened == [model] * times
        assert all(check.ok for check in reference.check(model, None))
        opened.pop()
    assert early is None or early.take() is None


def test_a_model_that_draws_random_numbers_is_not_opened_before_its_seeds_are_fixed(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", f"{HEADER} g (float[n] x) => (float[n] y) {{ y = RandomNormalLike(x) }}")
    assert verification.open_early(model, traits.of(ir.load(model)), 1, {}) is None


def test_what_the_runtime_says_of_the_original_comes_from_the_session_made_ahead(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", CHAIN)
    known = traits.of(ir.load(model))
    model.write_bytes(b"no model")
    early = verification.open_early(model, known, 8, {})
    with pytest.raises(NotRunnable):
        verification.references(
            ModelFile(model, known), Coverage(), folder=tmp_path, providers=[sessions.CPU], early=early
        )


def watch_runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, tuple[int, ...]]]:
    """The shapes of the inputs of each run from now on."""
    ran: list[dict[str, tuple[int, ...]]] = []
    true_run = sessions.run

    def watched(session: Any, feeds: Mapping[str, Any], *options: Any) -> Any:
        ran.append({name: array.shape for name, array in feeds.items()})
        return true_run(session, feeds, *options)

    monkeypatch.setattr(sessions, "run", watched)
    return ran


@pytest.mark.parametrize("pinned", [{}, {"batch": 5}])
def test_the_first_case_that_was_run_ahead_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: dict[str, int]
) -> None:
    model = write(tmp_path / "m.onnx", CHAIN)
    known = traits.of(ir.load(model))
    file, coverage = ModelFile(model, known), Coverage(pinned)
    (alone,) = verification.references(file, coverage, folder=tmp_path, providers=[sessions.CPU])
    ran = watch_runs(monkeypatch)
    early = verification.open_early(model, known, 1, pinned)
    (reference,) = verification.references(file, coverage, folder=tmp_path, providers=[sessions.CPU], early=early)
    first = next(iter(alone.outputs))
    assert next(iter(reference.outputs)) == first
    shape = alone.feeds(first)["x"].shape
    own = [case for case in reference.outputs if reference.feeds(case)["x"].shape == shape]
    assert [run["x"] for run in ran].count(shape) == len(own)
    for name, array in alone.outputs[first].items():
        assert np.array_equal(reference.outputs[first][name], array)


def test_no_case_is_run_ahead_of_the_users_own_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path / "m.onnx", CHAIN)
    ran = watch_runs(monkeypatch)
    early = verification.open_early(model, traits.of(ir.load(model)), 1, None)
    assert early is not None
    begun = early.take()
    assert begun is not None and begun.ran == {} and ran == []


def test_a_run_ahead_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    loop = (
        "g (float[8] x) => (float[8] y) "
        "{ one = Constant<value = bool {1}>() n = Constant<value = int64 {1000000000}>() "
        "y = Loop(n, one, x) <body = b (int64 i, bool c, float[8] v) => (bool o, float[8] w) "
        "{ o = Identity(c) w = Tanh(v) }> }"
    )
    model = write(tmp_path / "m.onnx", loop)
    early = verification.open_early(model, traits.of(ir.load(model)), 1, {})
    assert early is not None
    time.sleep(0.3)
    early.stop()
    started = time.monotonic()
    begun = early.take()
    assert begun is not None and begun.ran == {} and begun.seconds > 0.1
    assert time.monotonic() - started < 20
