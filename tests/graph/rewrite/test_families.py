"""Families of rewrite rules: each is one row, no rule is of two, and `explain` says what the row says."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxopt.graph.rewrite import FAMILIES, flow
from onnxopt.graph.rewrite.families import FAMILY_OF
from onnxopt.tools import explain
from tests.support.attention_graphs import Attention, ops, rewritten


def test_every_rule_is_of_one_family() -> None:
    rules = [rule_set for family in FAMILIES.values() for rule_set in family.rules]
    assert len(rules) == len(set(rules)) == len(FAMILY_OF)
    assert all(any(rule_set.counted for rule_set in family.rules) for family in FAMILIES.values() if family.rules)
    assert [name for name, family in FAMILIES.items() if not family.rules] == ["channels_last", "gated_weights"]


@pytest.mark.parametrize("name", FAMILIES)
def test_explain_says_how_often_a_family_applied(name: str) -> None:
    applied = {other: 3 * (other == name) for other in FAMILIES}
    assert explain.rewrites_text(applied) == FAMILIES[name].explanation.replace("{}", "3")
    assert explain.rewrites_text(applied).startswith("3 x ")


def test_families_of_other_versions_are_named() -> None:
    assert explain.rewrites_text({"attention": 0, "norms": 2}) == "2 x norms"


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.rules])
def test_a_family_that_is_left_out_applies_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[str | None] = []
    apply = flow._apply

    def record(model, rule_set, scope):  # type: ignore[no-untyped-def]
        applied.append(FAMILY_OF.get(rule_set))
        return apply(model, rule_set, scope)

    monkeypatch.setattr(flow, "_apply", record)
    model = Attention(scores='s = Einsum<equation = "bnsh,bnht->bnst">(q, kt)  masked = Mul(s, half)').model()
    rewritten(model, tmp_path)
    assert name in applied
    applied.clear()
    _, done = rewritten(model, tmp_path, leave_out=(name,))
    assert name not in applied
    assert name not in done.applied


def test_rules_keep_nothing_between_matches(tmp_path: Path) -> None:
    """Two attentions of different masks and scales in one graph are told apart, in either order."""
    for first, second in (("half", "two"), ("two", "half")):
        scores = f"s = MatMul(q, kt)  masked = Mul(s, {first})"
        weights = f"p0 = Softmax<axis = -1>(masked)  q2 = MatMul(p0, v)  s2 = MatMul(q2, kt)  m2 = Mul(s2, {second}) "
        model = Attention(scores=scores, weights=f"{weights} p = Softmax<axis = -1>(m2)", constants="float two = {2}")
        found, done = rewritten(model.model(), tmp_path)
        assert done.applied["attention"] == 2
        scales = [n.attributes["scale"].value for n in found.graph if n.op_type == "MultiHeadAttention"]
        assert scales == [{"half": 0.5, "two": 2.0}[name] for name in (first, second)], ops(found)
