"""Dims that the user fixes: which, at what size, and what the model declares afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onnxopt.errors import UsageError
from onnxopt.graph import fixed_dims, signature
from tests.support.graphs import graph

# dims: batch, ?y.1 of y's nameless one, height of 32*height, past and new
INPUTS = "float[batch, 32*height] x, float[2, ?] y, float[batch, past] p, float[batch, past + new] q"


def _model() -> signature.ir.Model:
    outputs = "float[batch, 32*height] z, float[past + new, batch] t"
    return graph(INPUTS.replace("32*height", "h").replace("past + new", "n").replace("?", "w"), outputs.replace(
        "32*height", "h").replace("past + new", "n"), "z = Neg (x) t = Transpose <perm = [1, 0]> (q)")  # fmt: skip


@pytest.fixture
def model() -> signature.ir.Model:
    """The text format has no expressions, so dims are renamed to them."""
    model, names = _model(), {"h": "32*height", "n": "past + new", "w": None}
    for value in (*model.graph.inputs, *model.graph.outputs):
        assert value.shape is not None
        dims = [dim if isinstance(dim, int) else names.get(str(dim.value), dim.value) for dim in value.shape]
        value.shape = signature.ir.Shape(dims)
    return model


def _dims(model: signature.ir.Model) -> dict[str, tuple[int | str | None, ...] | None]:
    return {t.name: t.dims for t in (*signature.inputs_of(model), *signature.outputs_of(model))}


def test_every_place_of_a_dim_gets_its_size(model: signature.ir.Model) -> None:
    sizes = signature.pin(signature.inputs_of(model), {"x": (3, 64), "y": (2, 5), "past": (7,)})
    assert sizes == {"batch": 3, "height": 2, "?y.1": 5, "past": 7}
    fixed_dims.fix(model, fixed_dims.chosen(True, signature.inputs_of(model), sizes))
    assert _dims(model) == {
        "x": (3, 64), "y": (2, 5), "p": (3, 7), "q": (3, "7 + new"), "z": (3, 64), "t": ("7 + new", 3)
    }  # fmt: skip
    fixed_dims.fix(model, {"new": 1})
    assert _dims(model)["q"] == (3, 8)


@pytest.mark.parametrize("fix", ["batch,past", ["batch", "past"], ("past, batch",)])
def test_named_dims_alone(model: signature.ir.Model, fix: str | Sequence[str]) -> None:
    inputs = signature.inputs_of(model)
    shapes = {"x": (3, 64), "y": (2, 5), "past": (7,), "batch": (3,)}
    sizes = fixed_dims.chosen(fix, inputs, signature.pin(inputs, shapes))
    assert sizes == {"batch": 3, "past": 7}
    assert fixed_dims.shapes_of_others(shapes, inputs, sizes) == {"x": (3, 64), "y": (2, 5)}
    original = signature.inputs_of(model)
    fixed_dims.fix(model, sizes)
    assert _dims(model)["p"] == (3, 7) and _dims(model)["x"] == (3, "32*height")
    assert fixed_dims.fixed_between(original, signature.inputs_of(model)) == sizes


def test_a_multiple_between_models(model: signature.ir.Model) -> None:
    original = signature.inputs_of(model)
    fixed_dims.fix(model, {"height": 4})
    assert fixed_dims.fixed_between(original, signature.inputs_of(model)) == {"height": 4}


@pytest.mark.parametrize(
    ("fix", "message"),
    [
        (True, "no size is stated"),
        ("hight", "'hight' is no dynamic dim; dims are batch, "),
        (["past"], "dim 'past' has no size; state it as a shape, past=8"),
    ],
)
def test_what_cannot_be_fixed(model: signature.ir.Model, fix: bool | str | list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fixed_dims.chosen(fix, signature.inputs_of(model), {})


def test_nothing_is_fixed_unasked(model: signature.ir.Model) -> None:
    assert fixed_dims.chosen(False, signature.inputs_of(model), {"batch": 3}) == {}
