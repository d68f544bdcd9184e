"""Depthwise convolutions behind a 1x1 convolution through the library on the CPU, and damaged kernel files."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from onnxopt.runtime import sessions
from tests.library.test_depthwise import _session
from tests.support.custom_ops_damage import set_field
from tests.support.depthwise_models import fused, worst
from tests.support.expanded_models import ExpandedCase, random_expanded

pytestmark = pytest.mark.usefixtures("library")

CASE = ExpandedCase((2, 9, 7, 16), (5, 5), (2, 2), pads=(2, 2, 2, 2), wide=40, behind="silu")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_convolutions(dtype: str, tmp_path: Path) -> None:
    for seed in range(12):
        case = random_expanded(seed, dtype)
        feeds = case.feeds()
        result = sessions.run(_session(fused(case), tmp_path / str(seed)), feeds)["y"]
        assert worst(case, result, case.expected(feeds)) <= 1, case


def test_one_session_takes_any_shape(tmp_path: Path) -> None:
    first = dataclasses.replace(CASE, known=False)
    session = _session(fused(first), tmp_path)
    for x in ((1, 8, 8), (3, 1, 1), (2, 30, 5), (0, 8, 8)):
        case = dataclasses.replace(first, x=(*x, 16))
        feeds = case.feeds()
        found = sessions.run(session, feeds)["y"]
        assert list(found.shape) == case.result_dims()
        assert not x[0] or worst(case, found, case.expected(feeds)) <= 1


def test_another_number_of_channels_is_refused(tmp_path: Path) -> None:
    found = fused(dataclasses.replace(CASE, known=False))
    session = _session(found, tmp_path, set_field("kernels.0.expansion.channels", 8))
    with pytest.raises(Exception, match="do not fit together"):
        sessions.run(session, {"t": np.zeros((1, 4, 4, 16), np.float16)})


OF = "kernels.0.expansion"
DAMAGE = {
    "a weight far away": (f"{OF}.weight", 9, "expansion.weight is not an integer from 0 to"),
    "a bias far away": (f"{OF}.bias", -1, "expansion.bias is not an integer from 0 to"),
    "no weight": (f"{OF}.weight", ..., 'has no field "weight"'),
    "no channels": (f"{OF}.channels", 0, "expansion.channels is not an integer from 1 to 96"),
    "too many channels": (f"{OF}.channels", 104, "expansion.channels is not an integer from 1 to 96"),
    "channels of no whole vectors": (f"{OF}.channels", 12, "are no multiple of 8"),
    "wide channels of no whole vectors": ("kernels.0.channels", 36, "are no multiple of 8"),
    "a large stride": ("kernels.0.window.strides", [3, 1], "a stride above 2"),
    "a dilation": ("kernels.0.window.dilations", [1, 2], "or a dilation"),
    "a large kernel": ("kernels.0.window.kernel", [9, 5], "a kernel above 7"),
    "no expansion": (OF, ..., "layout does not fit the kernel's meaning"),
    "another layout": ("kernels.0.variants.0.layout", "held", "layout does not fit the kernel's meaning"),
    "a huge tile": ("kernels.0.variants.0.across", 64, "across is not an integer from 1 to 32"),
    "no rows": ("kernels.0.variants.0.down", 0, "down is not an integer from 1 to 32"),
    "no chunks": ("kernels.0.variants.0.chunks", 0, "chunks is not an integer from 1 to 8"),
    "a wide vector": ("kernels.0.variants.0.vector", 16, "vector is wider than one access"),
    "few threads": ("kernels.0.variants.0.threads", 0, "threads is not an integer from"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, tmp_path: Path) -> None:
    field, value, message = DAMAGE[name]
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        _session(fused(CASE), tmp_path, set_field(field, value))
    assert "kernels.json" in str(caught.value)
