"""Inputs that choose what a model runs: both values are run, and what no case ran is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.graph import normalize, signature, traits
from onnxopt.graph.signature import Tensor
from onnxopt.runtime import sessions
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.reference import Reference
from onnxopt.verification.sampling import edges, samples
from onnxopt.verification.sampling.extremes import extremes
from tests.support.graphs import graph
from tests.support.small_models import write

IF = """
   y = If (c) <
      then_branch = t () => (float[n, 8] a) {{ b = {then}(x, x) a = Exp(b) }},
      else_branch = e () => (float[n, 8] d) {{ f = Mul(x, x) d = Tanh(f) }}
   >
"""
CONDITIONS = {
    "bool": ("bool[1] c", ""),
    "number": ("int64 k", "c = Cast<to = 9>(k)"),
    "negated": ("bool k", "c = Not(k)"),
}
NEVER = ("float[8] z", "m = ReduceMax<keepdims = 0>(z) p = Exp(m) o = Constant<value = float {0.0}>() c = Less(p, o)")


def model(condition: tuple[str, str], then: str = "Add") -> str:
    operands, nodes = condition
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    return f"{head}\ng (float[n, 8] x, {operands}) => (float[n, 8] y) {{ {nodes} {IF.format(then=then)} }}"


def cpu(original: Path, other: Path) -> onnxopt.VerificationReport:
    return onnxopt.verify(original, other, providers=[sessions.CPU])


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_a_branch_that_differs_is_found_at_each_kind_of_case(condition: tuple[str, str], tmp_path: Path) -> None:
    original = write(tmp_path / "m.onnx", model(condition))
    assert not any("branch" in note for note in cpu(original, original).notes)
    wrong = write(tmp_path / "wrong.onnx", model(condition, then="Sub"))
    failed = [check.case for check in cpu(original, wrong).checks if not check.ok]
    assert any(edges.ZEROS in case for case in failed) and any(edges.NAN in case for case in failed)


def test_kinds_and_sizes_are_tried_with_both_values(tmp_path: Path) -> None:
    original = write(tmp_path / "m.onnx", model(CONDITIONS["bool"]))
    cases = {check.case for check in cpu(original, original).checks}
    for kind in (edges.ZEROS, edges.NAN, edges.INFINITE):
        assert {f"seed {case.split('seed ')[1]}" for case in cases if kind in case} == {"seed 0", "seed 1"}


def test_a_value_that_the_model_refuses_leaves_the_other(tmp_path: Path) -> None:
    """True is refused at every usual size."""
    operands, nodes = CONDITIONS["bool"]
    refused = "s = Constant<value = int64[2] {3, 1000}>() r = Reshape(x, s) m = ReduceSum<keepdims = 0>(r) "
    refused += "a = Add(x, m)"
    text = model((operands, nodes)).replace("b = Add(x, x) a = Exp(b)", refused)
    report = cpu(write(tmp_path / "m.onnx", text), tmp_path / "m.onnx")
    assert report.status == "passed" and all("seed 1" in check.case for check in report.checks)
    assert "no case ran the then_branch of" in report.notes[-1]


def test_branches_that_no_case_runs_are_said(tmp_path: Path) -> None:
    original = write(tmp_path / "m.onnx", model(NEVER))
    (note,) = cpu(original, original).notes
    assert "no case ran the then_branch of" in note and "nothing in it was compared" in note


def test_what_is_no_flag() -> None:
    """Bools of several elements, masks, and inputs whose elements something restricts."""
    ids, flag, other = Tensor("ids", "int64", ("n",)), Tensor("use", "bool", (1,)), Tensor("fast", "bool", ())
    several, mask = Tensor("which", "bool", (64,)), Tensor("mask", "bool", (1,))
    drawn = [samples.draw([ids, flag, other, several, mask], {"n": 4}, seed, {}) for seed in (0, 1, 2)]
    assert [bool(feeds["use"].item()) for feeds in drawn] == [True, False, True]
    assert [bool(feeds["fast"].item()) for feeds in drawn] == [True, False, False]
    assert all(0 < feeds["which"].sum() < 64 and feeds["mask"].all() for feeds in drawn)


def test_ranges_are_measured_with_both_values(tmp_path: Path) -> None:
    body = (
        "y = If(c) <then_branch = t () => (float[B, N, 4] a) { a = Exp(x) }, "
        "else_branch = e () => (float[B, N, 4] b) { b = Tanh(x) }>"
    )
    chosen = graph("float[B, N, 4] x, bool[1] c", "float[B, N, 4] y", body)
    onnx.save(ir.to_proto(chosen), tmp_path / "model.onnx")
    file, coverage = ModelFile(tmp_path / "model.onnx", traits.of(chosen)), Coverage(data=[], seconds=0.2)
    reference = Reference(file, sessions.CPU, coverage, folder=tmp_path)
    found = extremes(normalize.normalize(chosen).model, reference, {})
    longest = max(feeds["x"].shape[1] for feeds in found)
    assert {bool(feeds["c"].item()) for feeds in found if feeds["x"].shape[1] == longest} == {True, False}
    assert {bool(feeds["c"].item()) for feeds in found if not feeds["x"].any()} == {True, False}


def test_caches_are_no_images() -> None:
    """They are as long as texts. An image of an open height has an open width, or stands alone."""
    ids = Tensor("ids", "int64", ("b", "n"))
    key, value = (Tensor(name, "float32", ("b", 4, "past", 16)) for name in ("k", "v"))
    assert signature.roles([ids, key, value]) == ({"b"}, {})
    assert signature.roles([key, value])[1] and signature.roles([ids, key])[1]
    left, right = (Tensor(name, "float32", ("b", 3, "h", "w")) for name in ("l", "r"))
    assert set(signature.roles([ids, left, right])[1]) == {"h", "w"}
    sizes = [samples.fitted([ids, key, value], each, {}) for each in samples.usual_sizes([ids, key, value])]
    assert all(each["past"] < 64 and each["past"] != each["n"] for each in sizes)
    assert any(each["n"] == 1 and each["past"] > 1 for each in sizes)  # a step of one token
    assert np.array_equal(samples.draw([ids, key, value], sizes[0], 0, {})["k"].shape, (1, 4, sizes[0]["past"], 16))
