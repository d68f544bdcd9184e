"""samples: which shapes are tried and what the tensors hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxopt.graph import input_uses, signature, traits
from onnxopt.graph.signature import Tensor
from onnxopt.verification.sampling import samples
from tests.support.small_models import TOKENS, write

IDS = Tensor("ids", "int64", ("batch", "new"))
MASK = Tensor("mask", "int64", ("batch", "past + new"))
STATE = Tensor("state", "float32", (2, "batch", 128))


def test_usual_sizes_differ_between_dims_and_include_ones() -> None:
    tried = list(samples.usual_sizes([IDS, MASK]))
    assert len(set(tried[0].values())) == 3
    assert any(s["new"] == s["past"] == 1 for s in tried)
    assert list(samples.usual_sizes([Tensor("x", "float32", (2, 3))])) == [{}]


def test_sides_that_are_multiples_are_as_long_as_others() -> None:
    image = Tensor("x", "float32", ("batch", 3, "32*h", "w"))
    shapes = [signature.resolve(image, sizes) for sizes in samples.usual_sizes([image])]
    assert [shape[0] for shape in shapes] == [1, 2, 3, 2, 5]
    assert all(64 <= side <= 160 for shape in shapes for side in shape[2:])


def test_a_mask_of_a_decoder_is_as_long_as_its_cache_and_the_new_tokens() -> None:
    """As exporters name its dims: with symbols of their own. Where another input has a symbol too, nothing changes."""
    cache = Tensor("past_key_values.0.key", "float32", ("batch", 2, "past", 16))
    ids, mask = Tensor("ids", "int64", ("batch", "new")), Tensor("attention_mask", "int64", ("other", "total"))
    sizes = {"batch": 2, "new": 5, "past": 11, "other": 3, "total": 7}
    assert samples.fitted([ids, mask, cache], sizes, {}) == sizes | {"other": 2, "total": 16}
    assert samples.fitted([ids, mask, cache], sizes, {"past": 4}) == sizes | {"other": 2, "past": 4, "total": 9}
    assert samples.fitted([ids, mask, cache], sizes, {"total": 8}) == sizes | {"other": 2, "total": 8}
    free = Tensor("x", "float32", ("total",))
    assert samples.fitted([ids, mask, cache, free], sizes, {}) == sizes | {"other": 2}
    assert samples.fitted([ids, mask], sizes, {"new": 6}) == sizes | {"new": 6}


def test_token_ids_stay_below_the_table(tmp_path: Path) -> None:
    model = ir.load(write(tmp_path / "m.onnx", TOKENS))
    uses = input_uses.uses_of_inputs(model)
    assert [(use.role, use.data) for use in uses["ids"]] == [("index", (3, 2))]
    drawn = samples.draw(signature.inputs_of(model), {"batch": 50, "sequence": 20}, 0, uses)["ids"]
    assert drawn.dtype == np.int64
    assert set(np.unique(drawn)) == {0, 1, 2}


def test_contents_follow_names_and_dtypes() -> None:
    tensors = [
        IDS,
        Tensor("attention_mask", "int64", ("batch", "new")),
        Tensor("lengths", "int64", ("batch",)),
        Tensor("sr", "int64", ()),
        Tensor("flag", "bool", ("batch",)),
        Tensor("pixels", "uint8", ("batch", 64)),
        Tensor("text", "string", ("batch",)),
        Tensor("x", "bfloat16", ("batch",)),
    ]
    drawn = samples.draw(tensors, {"batch": 4, "new": 8}, 0, {})
    assert set(np.unique(drawn["attention_mask"])) == {0, 1}
    assert drawn["attention_mask"][:, 0].all()
    assert (drawn["lengths"] == 64).all()
    assert drawn["sr"] == 16000
    assert drawn["flag"].dtype == bool
    assert drawn["pixels"].max() > 128
    assert drawn["text"].dtype == object
    assert str(drawn["x"].dtype) == "bfloat16"


def test_same_seed_same_tensors() -> None:
    first, second, other = (samples.draw([STATE], {"batch": 3}, seed, {})["state"] for seed in (0, 0, 1))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_bounds_that_only_the_other_model_shows(tmp_path: Path) -> None:
    hidden = TOKENS.replace("<float[3, 2] table = {1, 2, 3, 4, 5, 6}>", "").replace(
        "{ y", "{ table = Constant<value = float[3, 2] {1, 2, 3, 4, 5, 6}>() y"
    )
    original = traits.of(ir.load(write(tmp_path / "hidden.onnx", hidden)))
    optimized = traits.of(ir.load(write(tmp_path / "plain.onnx", TOKENS)))
    assert [use.data for use in original.uses["ids"]] == [None]
    assert [use.data for use in traits.completed(original, optimized).uses["ids"]] == [(3, 2)]
