"""Models of the collection for tests: one that cannot be downloaded here skips its test, and the reason says why."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import models

# Trained models of the same operators and nearly the same graph as another one of the collection.
ALIKE = frozenset(
    {
        "light_bvlc_alexnet", "light_vgg19", "light_zfnet512", "dnsmos_bak_ovr", "dnsmos_sig", "pdnsmos_p835",
        "aecmos_16k_b", "tashkeel_rawi_int8", "tashkeel_rawi_v2_int8", "silero_vad_half_fp16",
    }
)  # fmt: skip


def sampled(names: Iterable[str], left_out: Iterable[str] = ()) -> list[Any]:
    """For pytest.mark.parametrize: in every run those that no other model is like; left_out: not these either."""
    rest = ALIKE | {*left_out}
    return [pytest.param(name, marks=pytest.mark.exhaustive if name in rest else ()) for name in names]


def path(name: str) -> Path:
    """The model's file, fetched or exported if needed.

    A trained model whose package cannot be had skips the test. An export that fails is a failure: it needs only what
    is installed.
    """
    try:
        return models.path(name)
    except models.ModelUnavailable as error:
        if models.entry(name).kind == "exported":
            raise
        pytest.skip(str(error))
