"""Faults of kernels are found at the settings that `optimize` has by default: a sample here, all in `make fuzz`."""

from __future__ import annotations

import functools
from pathlib import Path
from unittest import mock

import onnx
import pytest

import models
from onnxopt.verification import reference
from onnxopt.verification.budget import Budget
from onnxopt.verification.reference import Reference
from tests.mutation import campaign
from tests.mutation.campaign import BELOW, FOUND, MISSED, Plan, Result
from tests.mutation.networks import NETWORKS
from tests.support import fusing, real_models

pytestmark = pytest.mark.usefixtures("library")
_EXPORTED = ("bert_tiny_dyn", "vit_tiny_dyn", "whisper_encoder_tiny_dyn", "llama_decode_tiny_dyn", "convnext_tiny_dyn")
# Of which none is missed for any kind; docs/verify.md has the share of the others.
_ALL_FOUND = (
    "the sign of negatives", "the last element", "the tail of a vector", "a row off by one", "the second sample on",
    "swapped operands",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    fusing.compile_nothing(monkeypatch)


def _of_network(name: str, folder: Path, plan: Plan) -> list[Result]:
    onnx.save(NETWORKS[name](), folder / "network.onnx")
    return campaign.run(folder / "network.onnx", folder / "artifact", plan)


def test_every_class_of_faults_is_found(tmp_path: Path) -> None:
    results = _of_network("pointwise", tmp_path, Plan(at_most=1))
    assert {r.of for r in results if r.outcome == MISSED} <= {"many elements"}  # whose case a busy machine leaves out
    assert len({r.of for r in results if r.outcome == FOUND}) >= 15


def test_what_no_case_tells_is_missed(tmp_path: Path) -> None:
    """Where nothing is compared, a fault passes, and counts as missed only if other inputs show it."""
    with mock.patch.object(Reference, "compare_outputs", return_value=[]):
        results = _of_network("scan", tmp_path, Plan(only=["the last element", "the tail of a vector"]))
    assert [(r.of, r.outcome) for r in results] == [("the last element", MISSED), ("the tail of a vector", BELOW)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NETWORKS)
def test_faults_of_every_kind_are_found(name: str, tmp_path: Path) -> None:
    results = _of_network(name, tmp_path, Plan(only=_ALL_FOUND))
    assert results and not [r for r in results if r.outcome == MISSED]


@pytest.mark.exhaustive
@pytest.mark.models
@pytest.mark.parametrize("name", [*_EXPORTED, *models.names("trained", runnable=True)])
def test_faults_of_models_are_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With time for the edges of slow models, too; just above the limit, which inputs show a fault is chance."""
    monkeypatch.setattr(reference, "Budget", functools.partial(Budget, remaining=10.0))
    results = campaign.run(real_models.path(name), tmp_path / "artifact", Plan(at_most=1, only=_ALL_FOUND, times=4.0))
    assert not [r for r in results if r.outcome == MISSED]
