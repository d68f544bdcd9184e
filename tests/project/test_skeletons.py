"""Skeletons: an optimized graph that was stripped of the original's weights gets every one back, bit for bit."""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import models
from benchmarks.support import skeletons
from benchmarks.support.collection import Collection
from benchmarks.support.recipes import Recipe
from tests.support.hostile.hostile_building import model_of, value

# Of every architecture one export in every run: dynamic dims have most of the forms.
TINY = [
    name if name.endswith("_tiny_dyn") else pytest.param(name, marks=pytest.mark.exhaustive)
    for name in models.names("exported")
    if "_tiny" in name
]


def filled(name: str) -> onnx.ModelProto:
    """An exported graph of benchmarks/graphs, each of whose emptied weights repeats random bits of its own."""
    model = onnx.load_from_string(lzma.decompress((skeletons.GRAPHS / f"{name}.onnx.xz").read_bytes()))
    emptied = json.loads((skeletons.GRAPHS / f"{name}.json").read_text())
    random = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.name in emptied:
            dims, dtype = emptied[tensor.name]
            size = int(np.prod(dims)) * helper.tensor_dtype_to_np_dtype(dtype).itemsize
            tensor.raw_data = (random.bytes(65537) * (size // 65537 + 1))[:size]
    return model


def digests(model: onnx.ModelProto) -> dict[str, bytes]:
    return {t.name: hashlib.sha256(t.raw_data).digest() for t in model.graph.initializer}


def came_back(optimized: onnx.ModelProto, source: onnx.ModelProto, path: Path) -> set[str]:
    """Strip and restore, and compare the two models; the names of the weights that were stripped."""
    whole = digests(optimized)
    skeletons.strip(optimized, source, path)
    stripped = {name for name, digest in digests(optimized).items() if digest != whole[name]}
    restored = skeletons.restore(path, source)
    assert digests(restored) == whole
    for tensor in restored.graph.initializer:
        if tensor.name in stripped:
            tensor.ClearField("raw_data")
    assert restored == optimized  # all but the weights that were compared
    return stripped


@pytest.mark.exhaustive
def test_a_skeleton_of_the_benchmarks(tmp_path: Path) -> None:
    source = filled("llama_decode_dyn")  # as the static one with more symbolic dims
    optimized, _ = Collection().optimize(source)
    weights = sum(len(t.raw_data) for t in source.graph.initializer)
    assert weights > 1e8
    came_back(optimized, source, tmp_path / "model.onnx.xz")
    assert sum(len(t.raw_data) for t in optimized.graph.initializer) < 0.001 * weights


@pytest.mark.models
@pytest.mark.parametrize("name", TINY)
def test_every_exported_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skeletons, "_KEEP_BELOW", 64)  # tiny models have tiny weights
    source = onnx.load(models.path(name))
    optimized, _ = Collection().optimize(onnx.load(models.path(name)))
    assert came_back(optimized, source, tmp_path / "model.onnx.xz")


def test_a_weight_of_every_form(tmp_path: Path) -> None:
    """As it is, of other dims, transposed, joined, with padded heads, as a convolution's columns, the first rows; and
    one that is new."""
    random = np.random.default_rng(0)
    matrix, other = (random.standard_normal((64, 96), np.float32) for _ in range(2))
    image, signal = random.standard_normal((32, 3, 8, 8), np.float32), random.standard_normal((32, 16, 5), np.float32)
    factors = random.uniform(1e-6, 1e-5, 96).astype(np.float32)
    given = {"matrix": matrix, "other": other, "image": image, "signal": signal, "factors": factors}
    derived = {
        "same": matrix,
        "of_three_dims": matrix.reshape(1, 64, 96),
        "matrix_transposed": matrix.T,
        "turned_image": image.reshape(32, -1).T,
        "matrix+other": np.concatenate([matrix, other], axis=-1),
        "matrix+other_transposed": np.concatenate([matrix, other], axis=-1).T,
        "image/columns": image.transpose(1, 2, 3, 0).reshape(-1, 32),
        "signal/columns": signal.transpose(2, 1, 0).reshape(-1, 32),
        "signal/columns_transposed": signal.transpose(2, 1, 0).reshape(-1, 32).T,
        "matrix/heads1_16_24": zeros_behind_columns(matrix, 16, 8),
        "matrix/heads1_16_24_transposed": zeros_behind_columns(matrix, 16, 8).T,
        "matrix/heads0_32_40": zeros_behind_columns(matrix.T, 32, 8).T,
        "matrix/heads1_16_24+other/heads1_16_24": zeros_behind_columns(np.concatenate([matrix, other], axis=-1), 16, 8),
        "matrix/scaled": (matrix.astype(np.float64) * factors).astype(np.float32),
        "matrix/scaled_transposed": (matrix.astype(np.float64) * factors * 2.0**20).astype(np.float32).T,
        "first_rows": other[:40],
        "new": matrix + 1,
    }
    source, optimized = with_weights(given), with_weights(derived)
    assert came_back(optimized, source, tmp_path / "model.onnx.xz") == derived.keys() - {"new"}


def zeros_behind_columns(matrix: np.ndarray, size: int, zeros: int) -> np.ndarray:
    """Zeros behind every `size` columns."""
    heads = matrix.reshape(len(matrix), -1, size)
    return np.pad(heads, ((0, 0), (0, 0), (0, zeros))).reshape(len(matrix), -1)


def with_weights(arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = model_of([helper.make_node("Identity", ["x"], ["y"])], [value("x", [1])], [value("y", [1])], {})
    model.graph.initializer.extend(numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in arrays.items())
    return model


def test_a_weight_of_another_dtype_with_the_same_bytes_is_not_taken(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 2**31, (64, 64), np.int32)
    source, optimized = with_weights({"w": bits}), with_weights({"w": bits.view(np.float32)})
    assert came_back(optimized, source, tmp_path / "model.onnx.xz") == set()


@pytest.mark.parametrize("turned", [False, True])
def test_codes_that_the_optimizer_stores_in_16_bits_come_from_the_codes(turned: bool, tmp_path: Path) -> None:
    codes = [np.random.default_rng(k).integers(-127, 128, (64, 64), np.int8) for k in range(2)]
    joined = np.concatenate(codes, axis=1).astype(np.float16)
    source = with_weights({"v": codes[0], "w": codes[1]})
    optimized = with_weights({"v+w_16_bits": joined.T if turned else joined})
    assert came_back(optimized, source, tmp_path / "model.onnx.xz") == {"v+w_16_bits"}


def test_another_source_is_refused(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    skeletons.strip(with_weights({"w": matrix}), with_weights({"w": matrix}), tmp_path / "model.onnx.xz")
    with pytest.raises(ValueError, match="w does not follow from the weights of this source"):
        skeletons.restore(tmp_path / "model.onnx.xz", with_weights({"v": matrix}))


def test_recipes_survive_json() -> None:
    recipe = Recipe(("a/heads1_20_24", "b/heads1_20_24"), transposed=True)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
