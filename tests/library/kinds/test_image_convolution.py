"""Calls of image convolutions: which shapes come out, which are refused; damaged files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.fakes import idle_gpu
from tests.support.kinds.image_convolution_models import IN_FRONT, Case, fused

pytestmark = pytest.mark.usefixtures("library")
CASE = Case((2, 3, 16, 18), 16, (3, 3), (2, 2), (1, 1, 1, 1), behind="prelu", appended=1)


def _calls(folder: Path, case: Case, feeds: list[dict[str, np.ndarray]]) -> list[dict[str, tuple[int, ...]] | str]:
    found = fused(case)
    return idle_gpu.calls(folder / "run", found.optimized, idle_gpu.document(found.kernels), feeds)


def test_a_model_of_any_shape(tmp_path: Path) -> None:
    sizes = ((1, 8, 8), (3, 1, 1), (2, 30, 5), (1, 8, 300), (0, 8, 8))
    feeds = [{"t": np.zeros((n, 3, h, w), np.float16)} for n, h, w in sizes]
    found = _calls(tmp_path, dataclasses.replace(CASE, known=False), feeds)
    assert found == [{"y": (n, (h + 1) // 2, (w + 1) // 2, 16)} for n, h, w in sizes]


def test_a_kernel_larger_than_its_input_is_refused(tmp_path: Path) -> None:
    case = Case((1, 3, 3, 3), 8, (5, 5), known=False)
    (said,) = _calls(tmp_path, case, [case.feeds()])
    assert "the kernel is larger than its padded input [" in said


KERNEL, VARIANT = "kernels.0", "kernels.0.variants.0"
DAMAGE = {
    "one input": (f"{KERNEL}.inputs", ["float16"], "are not 2 to 16"),
    "bytes": (f"{KERNEL}.inputs.1", "uint8", "are not floats of 16 or 32 bits"),
    "several dtypes": (f"{KERNEL}.inputs.0", "bfloat16", "are of several dtypes"),
    "two outputs": (f"{KERNEL}.outputs", ["float16"] * 2, "are not one of the inputs' dtype"),
    "five channels": (f"{KERNEL}.channels", 5, "channels is not an integer from 1 to 4"),
    "a narrow weight": (f"{KERNEL}.weight_channels", 2, "weight_channels is not an integer from 3"),
    "filters of no whole tile": (f"{KERNEL}.filters", 20, "is no multiple of 8"),
    "planes of 2": (f"{KERNEL}.planes", 2, "planes is not"),
    "a large kernel": (f"{KERNEL}.window.kernel", [12, 3], "has a kernel above 11"),
    "a large stride": (f"{KERNEL}.window.strides", [5, 2], "a stride above 4"),
    "a dilation": (f"{KERNEL}.window.dilations", [1, 2], "or a dilation"),
    "x far away": (f"{KERNEL}.x", 9, "x is not an integer from 0 to"),
    "a read by element": (f"{KERNEL}.after.reads.0.form", "element", "reads a tensor by element"),
    "a read too few": (f"{KERNEL}.after.reads", [], "does not compute one result of its dtype"),
    "threads of no whole warp": (f"{VARIANT}.threads", 100, "is no multiple of a warp"),
    "rows of no whole block": (f"{VARIANT}.across", 48, "does not divide a block's outputs"),
    "filters of no whole block": (f"{VARIANT}.filters", 24, "does not divide the kernel's filters"),
    "no products": (f"{VARIANT}.products", 0, "products is not an integer from 1"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, tmp_path: Path) -> None:
    field, value, message = DAMAGE[name]
    idle_gpu.assert_refused(tmp_path, idle_gpu.document(fused(CASE).kernels, set_field(field, value)), message)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (f"{KERNEL}.inputs.0", "float32", "does not compute one result of its dtype"),
        (f"{KERNEL}.before.reads.0.form", "element", "before reads a tensor by element"),
        (f"{KERNEL}.before.reads", [], "does not compute one result of its dtype"),
        (f"{KERNEL}.before.reads.0.input", 0, "does not compute one result of its dtype"),
        (f"{KERNEL}.before", ..., "are of several dtypes"),
    ],
)
def test_damaged_in_front(field: str, value: object, message: str, tmp_path: Path) -> None:
    changed = idle_gpu.document(fused(IN_FRONT[1]).kernels, set_field(field, value))
    idle_gpu.assert_refused(tmp_path, changed, message)
