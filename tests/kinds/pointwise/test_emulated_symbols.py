"""Index operations over symbolic dims: the library chooses entry points and fills their parameters, the CPU runs them.

The sizes break what vectors and tiles need, and make dims of one element: the host leaves their terms out where it
looks at the layout, and the kernel does not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from tests.kinds.pointwise.test_index_forms import SYMBOLIC
from tests.kinds.pointwise.test_index_regions import ONE_KERNEL
from tests.support.emulation import emulated_library
from tests.support.graphs import graph, run

pytestmark = pytest.mark.usefixtures("library")

CASES = SYMBOLIC | {name: case for name, case in ONE_KERNEL.items() if "dynamic" in name}
SIZES = ((1, 1), (2, 1), (1, 7), (3, 5), (2, 8), (1, 16), (4, 33), (17, 64), (0, 5), (3, 0))
_DTYPES = {ir.DataType.FLOAT: np.float32, ir.DataType.FLOAT16: np.float16}
_WIDE = {  # entry points of vectors, the only ones that these need
    "rotary embedding of packed projections": "VRVVRPP",
    "rotary embedding of a slice": "TTTTTPP",
    "dynamic batch": "VR",
}


def _feeds(model: ir.Model, number: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(number)
    sizes = dict(zip(("N", "S"), SIZES[number], strict=True))
    return {
        value.name: rng.uniform(-2, 2, [d if isinstance(d, int) else sizes[d.value] for d in value.shape]).astype(
            _DTYPES[value.dtype]
        )
        for value in model.graph.inputs
    }


@pytest.mark.parametrize("name", CASES)
def test_any_sizes_give_the_same_numbers(name: str, tmp_path: Path) -> None:
    inputs, outputs, body, constants = CASES[name]
    model = graph(inputs, outputs, body, constants=constants)
    optimized = model.clone()
    (kernel,) = outline(optimized, fuse(optimized))
    feeds = [_feeds(model, k) for k in range(len(SIZES))]
    found, launched = emulated_library.run(tmp_path / "run", ir.serde.serialize_model(optimized), [kernel], feeds)
    for k, results in enumerate(found):
        for value, expected in zip(results.values(), run(model, feeds[k]), strict=True):
            tolerance = 1e-3 if expected.dtype == np.float16 else 2e-6
            np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance, err_msg=str(SIZES[k]))
    if name in _WIDE:
        assert {symbol.removeprefix(kernel.name) for symbol in launched} == {f"_strided_{_WIDE[name]}"}
