"""signature: inputs and outputs of a model, symbols of their dims, and the sizes that a user's shapes fix."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxopt.errors import UsageError
from onnxopt.graph import signature
from onnxopt.graph.signature import Tensor
from tests.support import graphs

IDS = Tensor("ids", "int64", ("batch", "new"))
MASK = Tensor("mask", "int64", ("batch", "past + new"))
STATE = Tensor("state", "float32", (2, "batch", 128))
IMAGE = Tensor("image", "float32", (None, 3, None, None))


def test_inputs_with_a_default_value_need_not_be_fed() -> None:
    model = graphs.graph("float16[batch, 4] x, int64[2] k", "float16[] y", "y = Reshape(x, k)")
    default = model.graph.inputs[1]
    default.const_value = ir.tensor([1, 4], name="k")
    model.graph.register_initializer(default)
    assert signature.inputs_of(model) == (Tensor("x", "float16", ("batch", 4)),)
    assert [tensor.name for tensor in signature.outputs_of(model)] == ["y"]


def test_a_tensor_as_text() -> None:
    texts = [signature.tensor_text(t) for t in (MASK, IMAGE, Tensor("s", "", None, "sequence"))]
    assert texts == ["mask: int64[batch,past + new]", "image: float32[?,3,?,?]", "s: [?]"]


def test_symbols_are_shared_and_expressions_computed() -> None:
    assert signature.symbols([IDS, MASK, STATE]) == ("batch", "new", "past")
    sizes = {"batch": 2, "new": 5, "past": 7}
    assert [signature.resolve(t, sizes) for t in (IDS, MASK, STATE)] == [(2, 5), (2, 12), (2, 2, 128)]


def test_unnamed_dims() -> None:
    assert signature.symbols([IMAGE]) == ("?batch", "?image.2", "?image.3")
    batch, space = signature.roles([IMAGE])
    assert batch == {"?batch"}
    assert space == {"?image.2": 1, "?image.3": 1}


def test_sides_that_are_multiples() -> None:
    """As torch.export names the dims of `32 * Dim("h")`."""
    image = Tensor("x", "float32", ("batch", 3, "32*h", "w*8"))
    assert signature.symbols([image]) == ("batch", "h", "w")
    assert signature.roles([image]) == ({"batch"}, {"h": 32, "w": 8})
    pinned = signature.pin([image], {"x": (2, 3, 640, 480)})
    assert pinned == {"batch": 2, "h": 20, "w": 60} == signature.pin([image], {"batch": (2,), "h": (20,), "w": (60,)})
    assert signature.resolve(image, pinned) == (2, 3, 640, 480)
    assert signature.typical([image], {}) == {"batch": 1, "h": 7, "w": 28}
    with pytest.raises(UsageError, match=r"shape of x: dim '32\*h' is 650, which is no multiple of 32"):
        signature.pin([image], {"x": (2, 3, 650, 480)})


def test_pin_by_input_and_by_symbol() -> None:
    assert signature.pin([IDS, MASK], {"ids": (4, 9)}) == {"batch": 4, "new": 9}
    assert signature.pin([IDS, MASK], {"past": (3,)}) == {"past": 3}


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({"batch": (2, 3)}, r"shape of batch: it is one dim and has one size, not \[2, 3\]"),
        ({"idz": (1,)}, "no such input or dim; inputs are ids, state"),
        ({"ids": (1, 2, 3)}, "the input has 2 dims"),
        ({"state": (3, 1, 128)}, "dim 0 is 2, not 3"),
        ({"ids": (1, 2), "state": (2, 4, 128)}, "dim 'batch' is 4 here and 1 elsewhere"),
        ({"ids": (-1, 2)}, "negative"),
    ],
)
def test_pin_refuses(shapes: dict[str, tuple[int, ...]], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        signature.pin([IDS, STATE], shapes)
