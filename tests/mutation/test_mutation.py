"""Faults of kernels are found at the settings that `optimize` has by default: a sample here, all in `make fuzz`."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import models
from tests.mutation import campaign
from tests.mutation.campaign import FOUND, MISSED, Plan, Result
from tests.mutation.networks import NETWORKS
from tests.support import fusing, real_models

pytestmark = pytest.mark.usefixtures("library")
_EXPORTED = ("bert_tiny_dyn", "vit_tiny_dyn", "whisper_encoder_tiny_dyn", "llama_decode_tiny_dyn", "convnext_tiny_dyn")


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    fusing.compile_nothing(monkeypatch)


def _results(model: Path, folder: Path, plan: Plan) -> list[Result]:
    results = campaign.run(model, folder / "artifact", plan)
    assert any(r.outcome == FOUND for r in results)
    return results


def _network(name: str, folder: Path, plan: Plan) -> list[Result]:
    onnx.save(NETWORKS[name](), folder / "network.onnx")
    return _results(folder / "network.onnx", folder, plan)


@pytest.mark.parametrize("name", ["rowwise", "encoder", "attention"])
def test_every_class_of_faults_is_found(name: str, tmp_path: Path) -> None:
    assert not _missed(_network(name, tmp_path, Plan(at_most=2)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NETWORKS)
def test_all_faults_of_every_kind_are_found(name: str, tmp_path: Path) -> None:
    assert not _missed(_network(name, tmp_path, Plan()))


@pytest.mark.exhaustive
@pytest.mark.models
@pytest.mark.parametrize("name", [*_EXPORTED, *models.names("trained", runnable=True)])
def test_faults_of_models_are_found(name: str, tmp_path: Path) -> None:
    assert not _missed(_results(real_models.path(name), tmp_path, Plan(at_most=2)))


def _missed(results: list[Result]) -> list[Result]:
    return [r for r in results if r.outcome == MISSED]
