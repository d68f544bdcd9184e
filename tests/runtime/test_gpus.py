"""The GPU catalogue: every entry satisfies its rules, and a driver's name finds the right one."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from onnxopt.codegen.architectures import ARCHS
from onnxopt.runtime import gpus

DOCUMENT: dict[str, Any] = json.loads(gpus.FILE.read_text("utf-8"))


def test_the_gpus_that_were_promised() -> None:
    promised = "t4 v100 a10g a30 a40 a100_40gb a100_80gb l4 l40s h100_pcie h100_sxm h200 b200 rtx3090 rtx4090 rtx5090"
    assert set(gpus.catalogue()) >= {*promised.split(), "jetson_orin"}


def test_every_architecture_that_is_compiled_for_has_a_gpu() -> None:
    assert {g.arch for g in gpus.catalogue().values() if not g.refused} == set(ARCHS)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA H200", "h200"),
        ("Tesla T4", "t4"),
        ("NVIDIA A100-SXM4-80GB", "a100_80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
        ("Orin", "jetson_orin"),
    ],
)
def test_a_drivers_name_finds_its_entry(name: str, key: str) -> None:
    found = gpus.find_gpu(name)
    assert found is not None
    assert found.key == gpus.key_of(name) == key


@pytest.mark.parametrize(
    "name", ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 NVL", ""]
)
def test_other_devices_find_none(name: str) -> None:
    assert gpus.find_gpu(name) is None
    assert gpus.key_of(name) not in gpus.catalogue()


def test_v100_is_refused_with_a_reason() -> None:
    gpu = gpus.find_gpu("Tesla V100-SXM2-16GB")
    assert gpu is not None
    assert gpu.arch == "sm_70"
    assert "no code for sm_70" in gpu.refused


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"compute_capability": "9"}, "not like 9.0"),
        ({"bandwidth_gb_s": 0}, "bandwidth_gb_s must be above 0"),
        ({"sources": {}}, "each figure needs one source"),
        ({"compute_capability": "6.1"}, "if and only if"),
        ({"refused": "no reason"}, "if and only if"),
        ({"unconfirmed": ["colour"]}, "must name figures, not colour"),
        ({"driver_names": ["NVIDIA H200"]}, "both called 'NVIDIA H200'"),
        ({"driver_names": []}, "no driver names"),
        ({"colour": "green"}, "colour"),
    ],
)
def test_a_wrong_entry_is_named(change: dict[str, Any], reason: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["gpus"]["l4"].update(change)
    with pytest.raises(ValueError, match=f"l4.*{reason}|h200 and l4.*{reason}"):
        gpus.parse(document)


def test_a_figure_with_two_sources_is_named() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["gpus"]["l4"]["sources"]["rumour"] = ["sms"]
    with pytest.raises(ValueError, match="l4: each figure needs one source; look at sms"):
        gpus.parse(document)
