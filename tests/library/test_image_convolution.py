"""Image convolutions through the library on the CPU: meaning, shapes and padding against float64, and bad files."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.runtime import sessions
from tests.support.custom_ops_artifact import copy_library
from tests.support.custom_ops_damage import set_field
from tests.support.depthwise_models import Fused, worst
from tests.support.image_convolution_models import IN_FRONT, Case, fused, random_case
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = pytest.mark.usefixtures("library")
CASE = Case((2, 3, 16, 18), 16, (3, 3), (2, 2), (1, 1, 1, 1), behind="prelu", appended=1)


def _session(found: Fused, folder: Path, change=None) -> ort.InferenceSession:
    """A session that runs the fused function with the CPU kernel. change: of kernels.json's document, in place."""
    library = copy_library(folder)
    kernels = [dataclasses.replace(k, cpu=True) for k in found.kernels]
    document = json.loads(kernels_json.to_json(kernels, None))
    if change is not None:
        change(document)
    (folder / "kernels.json").write_text(sealed_json.seal(document))
    onnx.save(with_wrong_bodies(found.optimized), folder / "model.onnx")
    return sessions.open_session(folder / "model.onnx", library=library)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_random_convolutions(dtype: str, tmp_path: Path) -> None:
    for seed in range(15):
        case = random_case(seed, dtype)
        found = fused(case)
        (region,) = found.plan.regions
        assert region.kind.name == "image_convolution", case
        feeds = case.feeds()
        y = sessions.run(_session(found, tmp_path / str(seed)), feeds)["y"]
        assert worst(case, y, case.expected(feeds)) <= 1, case  # type: ignore[arg-type]


def test_images_of_other_dtypes(tmp_path: Path) -> None:
    cases = [dataclasses.replace(case, dtype=dtype) for case in IN_FRONT for dtype in ("float16", "bfloat16")]
    for number, case in enumerate(cases):
        feeds = case.feeds()
        y = sessions.run(_session(fused(case), tmp_path / str(number)), feeds)["y"]
        with np.errstate(all="ignore"):
            assert worst(case, y, case.expected(feeds)) <= 1, case  # type: ignore[arg-type]


def test_one_session_takes_any_shape(tmp_path: Path) -> None:
    first = dataclasses.replace(CASE, known=False)
    session = _session(fused(first), tmp_path)
    for n, h, w in ((1, 8, 8), (3, 1, 1), (2, 30, 5), (1, 8, 300)):
        case = dataclasses.replace(first, x=(n, 3, h, w))
        feeds = case.feeds()
        y = sessions.run(session, feeds)["y"]
        assert worst(case, y, case.expected(feeds)) <= 1  # type: ignore[arg-type]
    assert sessions.run(session, {"t": np.zeros((0, 3, 8, 8), np.float16)})["y"].shape == (0, 4, 4, 16)


def test_a_kernel_larger_than_its_input_is_refused(tmp_path: Path) -> None:
    case = Case((1, 3, 3, 3), 8, (5, 5), known=False)
    with pytest.raises(Exception, match=r"the kernel is larger than its padded input \["):
        sessions.run(_session(fused(case), tmp_path), case.feeds())


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
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        _session(fused(CASE), tmp_path, set_field(field, value))
    assert "kernels.json" in str(caught.value)


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
    with pytest.raises(Exception, match=re.escape(message)):
        _session(fused(IN_FRONT[1]), tmp_path, set_field(field, value))
