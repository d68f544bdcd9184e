"""A fixed handful of the respelled networks of tests/fuzz/respell/; `make fuzz` tries many more."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite import forms, table
from tests.fuzz.respell.examining import case, examine, respelled
from tests.fuzz.respell.spelling import SPELLINGS

SEEDS = range(16)
_UNDONE_FIRST = (47, 50)  # of networks whose spelling the first phase of rules undoes


@pytest.mark.parametrize("seed", SEEDS)
def test_respelled_network(seed: int, tmp_path: Path, library: Path) -> None:
    result = examine(seed, tmp_path)
    assert result.problem == "", (result.network, result.spellings, result.launches)


def test_equal_seeds_give_equal_models() -> None:
    first, second = (respelled(*case(3))[0] for _ in range(2))
    assert ir.to_proto(first).SerializeToString() == ir.to_proto(second).SerializeToString()


@pytest.mark.exhaustive
def test_every_spelling_applies_to_some_network() -> None:
    """One that applied nowhere would try nothing."""
    left = {spelling.name for spelling in SPELLINGS}
    for seed in range(1000):
        left -= {name.split(" x ")[0] for name in respelled(*case(seed))[1]}
        if not left:
            return
    assert not left


def test_a_lost_fusion_is_a_finding(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the first test: without the rules of the first phase, launches are more."""
    assert not any(examine(seed, tmp_path).problem for seed in _UNDONE_FIRST)
    monkeypatch.setattr(forms, "TABLE", table.TABLE[1:])
    assert any("launches" in examine(seed, tmp_path).problem for seed in _UNDONE_FIRST)
