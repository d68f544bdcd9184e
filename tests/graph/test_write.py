"""saving: what is written is what was loaded, byte for byte, shared tensors once, holes as holes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from onnxopt.graph import read, wire, write
from tests.support.hostile.hostile_models import MODELS, model_of, value


def _weights(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def _model() -> onnx.ModelProto:
    random = np.random.default_rng(5)
    weights = {
        "large": random.standard_normal(300_000, dtype=np.float32),
        "middle": random.standard_normal(5_000).astype(np.float16),
        "small": np.float32([1.0]),
    }
    nodes = [
        helper.make_node("ReduceSum", ["large"], ["a"], keepdims=0),
        helper.make_node("Cast", ["middle"], ["m"], to=1),
        helper.make_node("ReduceSum", ["m"], ["b"], keepdims=0),
        helper.make_node("Sum", ["x", "a", "b", "small"], ["y"]),
    ]
    return model_of(nodes, [value("x", [1])], [value("y", [1])], weights)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.onnx"
    onnx.save(_model(), path)
    return path


@pytest.mark.parametrize("external", [False, True])
def test_weights_are_written_as_they_were(tmp_path: Path, source: Path, external: bool) -> None:
    files = write.save(read.load(source).model, tmp_path, external=external)
    assert files == (("model.onnx", "model.onnx.data") if external else ("model.onnx",))
    assert _weights(tmp_path / "model.onnx").keys() == _weights(source).keys()
    for name, array in _weights(source).items():
        np.testing.assert_array_equal(_weights(tmp_path / "model.onnx")[name], array)
    onnx.checker.check_model(tmp_path / "model.onnx")


def test_external_tensors_are_aligned_and_small_ones_stay_inside(tmp_path: Path, source: Path) -> None:
    write.save(read.load(source).model, tmp_path, external=True)
    written = {t.name: t for t in onnx.load(tmp_path / "model.onnx", load_external_data=False).graph.initializer}
    offset = {n: {e.key: e.value for e in t.external_data}.get("offset") for n, t in written.items()}
    assert offset["small"] is None
    assert int(offset["large"]) % 65536 == 0
    assert int(offset["middle"]) % 4096 == 0


@pytest.mark.parametrize("external", [False, True])
def test_the_same_model_gives_the_same_bytes(tmp_path: Path, source: Path, external: bool) -> None:
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        files = write.save(read.load(source).model, folder, external=external)
        contents.append([(folder / file).read_bytes() for file in files])
    assert contents[0] == contents[1]


def test_from_external_to_external_and_back(tmp_path: Path, source: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    model = source
    for folder, external in zip(folders, (True, True, False), strict=True):
        folder.mkdir()
        write.save(read.load(model).model, folder, external=external)
        model = folder / "model.onnx"
    for name, array in _weights(source).items():
        np.testing.assert_array_equal(_weights(model)[name], array)
    assert (folders[0] / "model.onnx.data").read_bytes() == (folders[1] / "model.onnx.data").read_bytes()


def test_tensors_that_share_bytes_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "tied.onnx"
    array = np.arange(100_000, dtype=np.float32)
    nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "v"], ["y"])]
    model = model_of(nodes, [value("x", [100_000])], [value("y", [100_000])], {"w": array, "v": array})
    onnx.save(model, path, save_as_external_data=True, location="tied.bin")
    tied = onnx.load(path, load_external_data=False)
    wire.set_external(tied.graph.initializer[1], "tied.bin", 0, 400_000)
    path.write_bytes(tied.SerializeToString())
    os.truncate(tmp_path / "tied.bin", 400_000)

    assert write.save(read.load(path).model, tmp_path) == ("model.onnx", "model.onnx.data")
    assert (tmp_path / "model.onnx.data").stat().st_size == 400_000
    for written in _weights(tmp_path / "model.onnx").values():
        np.testing.assert_array_equal(written, array)


def test_tensors_in_memory(tmp_path: Path) -> None:
    array = np.arange(1000, dtype=np.float32)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1000]))
    weights = [ir.Value(name=n, const_value=ir.tensor(array, name=n)) for n in "wv"]
    node = ir.node("Sum", inputs=[x, *weights])
    node.outputs[0].name = "y"
    node.outputs[0].type = x.type
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=weights, opset_imports={"": 20}, name="g")
    for external in (False, True):
        write.save(ir.Model(graph, ir_version=9), tmp_path, external=external)
        for written in _weights(tmp_path / "model.onnx").values():
            np.testing.assert_array_equal(written, array)
    assert (tmp_path / "model.onnx.data").stat().st_size == 4000  # equal content, one place


def test_a_model_above_the_limit_gets_a_data_file(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "EMBED_LIMIT", 1_000_000)
    assert write.save(read.load(source).model, tmp_path) == ("model.onnx", "model.onnx.data")
    with pytest.raises(ValueError, match="one ONNX file holds at most 1000000"):
        write.save(read.load(source).model, tmp_path, external=False)


def test_holes_stay_holes(tmp_path: Path) -> None:
    path, size = tmp_path / "sparse.onnx", 256 << 20
    node = helper.make_node("Gather", ["w", "x"], ["y"])
    model = model_of([node], [value("x", [1], 7)], [value("y", [1, 1 << 20])])
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[size >> 22, 1 << 20])
    wire.set_external(weight, "w.bin", 0, size)
    model.graph.initializer.append(weight)
    path.write_bytes(model.SerializeToString())
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(size)
        os.pwrite(file.fileno(), b"\x01" * 4096, 128 << 20)
    write.save(read.load(path).model, tmp_path, external=True)
    written = tmp_path / "model.onnx.data"
    assert written.stat().st_size == size
    assert written.stat().st_blocks * 512 < 16 << 20
    with open(written, "rb") as file:
        assert os.pread(file.fileno(), 8192, (128 << 20) - 2048) == b"\0" * 2048 + b"\x01" * 4096 + b"\0" * 2048


def test_without_copying_in_the_kernel(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(errno.EXDEV, "other file system")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    write.save(read.load(source).model, tmp_path)
    for name, array in _weights(source).items():
        np.testing.assert_array_equal(_weights(tmp_path / "model.onnx")[name], array)


def test_a_weight_file_that_shrank_is_an_error(tmp_path: Path, source: Path) -> None:
    model = read.load(source).model
    os.truncate(source, 1000)
    with pytest.raises(OSError, match="became shorter"):
        write.save(model, tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_unchanged_models_stay_what_they_are(name: str, tmp_path: Path) -> None:
    if name == "sparse_initializer":
        pytest.skip("loading makes it dense")
    original, _ = MODELS[name]()
    del original.graph.value_info[:]
    onnx.save(original, tmp_path / "original.onnx")
    write.save(read.load(tmp_path / "original.onnx").model, tmp_path)
    written = onnx.load(tmp_path / "model.onnx")
    assert onnx.printer.to_text(written) == onnx.printer.to_text(original)
