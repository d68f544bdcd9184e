"""loading: every unreadable file ends in one clear line, and readable ones cost no memory for their weights."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from onnxopt.errors import ModelError
from onnxopt.graph import read, wire
from tests.support.hostile.hostile_models import model_of, value


def _weighty(count: int = 4096) -> onnx.ModelProto:
    weights = {"w": np.arange(count, dtype=np.float32), "b": np.float32([3.0])}
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["y"])]
    return model_of(nodes, [value("x", [count])], [value("y", [count])], weights)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def _external(path: Path, count: int = 4096, **options: object) -> onnx.ModelProto:
    """Write a model whose weights lie in w.bin beside it; returns it as written."""
    onnx.save(_weighty(count), path, save_as_external_data=True, location="w.bin", size_threshold=0, **options)
    return onnx.load(path, load_external_data=False)


def _relocate(path: Path, location: str, *, tensor: int = 0) -> None:
    model = onnx.load(path, load_external_data=False)
    entry = next(e for e in model.graph.initializer[tensor].external_data if e.key == "location")
    entry.value = location
    path.write_bytes(model.SerializeToString())


def _refused(path: Path) -> str:
    """The message of the ModelError that loading raises: one line that names the file."""
    with pytest.raises(ModelError) as caught:
        read.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_weights_stay_in_the_file(path: Path) -> None:
    onnx.save(_weighty(), path)
    source = read.load(path)
    weight = source.model.graph.initializers["w"].const_value
    assert isinstance(weight, ir.ExternalTensor)
    assert Path(weight.path) == path.resolve()
    np.testing.assert_array_equal(weight.numpy(), np.arange(4096, dtype=np.float32))
    assert not isinstance(source.model.graph.initializers["b"].const_value, ir.ExternalTensor)
    assert source.bytes == path.stat().st_size
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_weights_in_subgraphs_constants_and_float_data_stay_in_the_file(path: Path) -> None:
    array = np.arange(1000, dtype=np.float32)
    inner = numpy_helper.from_array(array, "inner")
    branch = helper.make_graph([helper.make_node("Mul", ["x", "inner"], ["o"])], "b", [], [value("o", [1000])], [inner])
    constant = helper.make_tensor("k", onnx.TensorProto.FLOAT, [1000], array)  # packed float_data, not raw_data
    nodes = [
        helper.make_node("If", ["c"], ["a"], then_branch=branch, else_branch=branch),
        helper.make_node("Constant", [], ["k"], value=constant),
        helper.make_node("Add", ["a", "k"], ["y"]),
    ]
    inputs = [value("x", [1000]), value("c", [], onnx.TensorProto.BOOL)]
    onnx.save(model_of(nodes, inputs, [value("y", [1000])]), path)
    model = read.load(path).model
    tensors = [v.const_value for g in model.graphs() for v in g.initializers.values()]
    tensors += [n.attributes["value"].as_tensor() for n in model.graph if n.op_type == "Constant"]
    assert len(tensors) == 3
    for tensor in tensors:
        assert isinstance(tensor, ir.ExternalTensor)
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_external_data(path: Path) -> None:
    _external(path)
    source = read.load(path)
    np.testing.assert_array_equal(source.model.graph.initializers["w"].const_value.numpy(), np.arange(4096))
    assert source.model.graph.initializers["b"].const_value.numpy() == 3
    assert source.bytes == path.stat().st_size + 4096 * 4 + 4


def test_model_and_data_behind_links_as_in_the_hugging_face_cache(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    _external(tmp_path / "blobs" / "model.onnx")
    for name, blob in (("model.onnx", "m"), ("w.bin", "w")):
        (tmp_path / "blobs" / name).rename(tmp_path / "blobs" / blob)
        (tmp_path / "snapshot" / name).symlink_to(f"../blobs/{blob}")
    source = read.load(tmp_path / "snapshot" / "model.onnx")
    np.testing.assert_array_equal(source.model.graph.initializers["w"].const_value.numpy(), np.arange(4096))


def test_no_file(path: Path) -> None:
    assert "no such file" in _refused(path)


def test_folder(path: Path) -> None:
    path.mkdir()
    assert _refused(path).endswith("is a folder, not an ONNX file")
    (path / "model.onnx").touch()
    assert _refused(path).endswith(f"is a folder, not an ONNX file; give {path / 'model.onnx'}")


def test_empty(path: Path) -> None:
    path.touch()
    assert "empty" in _refused(path)


@pytest.mark.parametrize("content", [b"not a model\n" * 100, b"\x00" * 64, b"\xff" * 64, b"PK\x03\x04zip", b"{}"])
def test_not_onnx(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert "not an ONNX" in _refused(path)


def test_truncated_anywhere(path: Path) -> None:
    whole = _weighty().SerializeToString()
    for size in [*range(1, 200, 7), *range(200, len(whole), 1500), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert "truncated" in _refused(path) or "invalid" in _refused(path)


def test_unreadable(path: Path) -> None:
    path.symlink_to(path.name)  # a link to itself
    assert "cannot be read" in _refused(path)


def test_invalid_graph(path: Path) -> None:
    model = _weighty()
    model.graph.node[0].op_type = "NoSuchOperator"
    path.write_bytes(model.SerializeToString())
    assert "NoSuchOperator" in _refused(path)


def test_cycle(path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Exp", ["a"], ["b"])]
    path.write_bytes(model_of(nodes, [value("x", [1])], [value("b", [1])]).SerializeToString())
    assert "cycle" in _refused(path)


def test_value_that_nothing_produces(path: Path) -> None:
    model = _weighty()
    model.graph.node[0].input[1] = "nothing"
    path.write_bytes(model.SerializeToString())
    assert "nothing" in _refused(path)


def test_newer_ir_version(path: Path) -> None:
    model = _weighty()
    model.ir_version = 99
    path.write_bytes(model.SerializeToString())
    assert "IR version 99 is newer" in _refused(path)


def test_newer_opset(path: Path) -> None:
    model = _weighty()
    model.opset_import[0].version = 999
    path.write_bytes(model.SerializeToString())
    assert "opset 999 is newer" in _refused(path)


def test_weight_of_the_wrong_size(path: Path) -> None:
    model = _weighty()
    model.graph.initializer[0].dims[0] = 5000
    path.write_bytes(model.SerializeToString())
    assert "'w': float[5000] needs 20000 bytes, 16384 bytes are stored" in _refused(path)


def test_external_data_missing(path: Path) -> None:
    _external(path)
    (path.parent / "w.bin").unlink()
    assert "'w.bin' is missing" in _refused(path)


def test_external_data_too_short(path: Path) -> None:
    _external(path)
    os.truncate(path.parent / "w.bin", 100)
    assert "has only 100" in _refused(path)


@pytest.mark.parametrize("location", ["/etc/passwd", "../w.bin", "sub/../../w.bin", ""])
def test_external_path_outside_the_folder(path: Path, location: str) -> None:
    _external(path)
    _relocate(path, location)
    assert "outside the model's folder" in (message := _refused(path)) or "without a location" in message


def test_external_link_to_outside_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "inside" / "model.onnx"
    path.parent.mkdir()
    _external(path)
    (path.parent / "w.bin").rename(tmp_path / "secret")
    (path.parent / "w.bin").symlink_to(tmp_path / "secret")
    assert "link to outside" in _refused(path)


@pytest.mark.parametrize(
    ("key", "wrong", "expected"),
    [
        ("offset", "-4", "'w': external data without a location, or with a negative offset or shape"),
        ("length", "many", "'w': offset or length of its external data is not a number"),
        ("length", "12", "'w': float[4096] needs 16384 bytes, 12 bytes are stored"),
    ],
)
def test_external_data_with_bad_numbers(path: Path, key: str, wrong: str, expected: str) -> None:
    model = _external(path)
    entries = model.graph.initializer[0].external_data
    for entry in [e for e in entries if e.key == key]:
        entries.remove(entry)
    entries.add(key=key, value=wrong)
    path.write_bytes(model.SerializeToString())
    assert expected in _refused(path)


def test_damaged_bytes_never_crash(path: Path) -> None:
    whole = bytearray(_weighty(300).SerializeToString())
    random = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(whole)
        for at in random.integers(0, 60, 3):
            damaged[at] = random.integers(0, 256)
        path.write_bytes(damaged)
        with contextlib.suppress(ModelError):
            read.load(path)


def test_cut_and_splice_are_inverse(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_weighty(), path)
    whole = path.read_bytes()
    small = wire.strip(memoryview(whole), str(path), 1024)
    assert len(small) < 1024
    parts = wire.splice(small, lambda data: True)
    spliced = b"".join(
        part if isinstance(part, bytes) else whole[part.offset : part.offset + part.length] for part in parts
    )
    assert onnx.ModelProto.FromString(spliced) == onnx.ModelProto.FromString(whole)


# --- dims ---


def test_dims_whose_symbol_is_a_number_have_this_size(path: Path) -> None:
    """As transformers' exporter names dims that are fixed in a graph that is otherwise dynamic."""
    model = _weighty(4)
    for declared in (*model.graph.input, *model.graph.output):
        declared.type.tensor_type.shape.dim[0].dim_param = "4"
    long = value("long", ["4", "batch", "4 + batch", "99999999999999999999", "\u0664", "0"])
    model.graph.input.append(long)
    onnx.save(model, path)
    x, other = read.load(path).model.graph.inputs
    assert x.shape == [4]
    assert next(iter(other.shape)) == 4 and all(isinstance(dim, ir.SymbolicDim) for dim in list(other.shape)[1:])


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_weights_of_pytorch_are_called_so(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 anything")
    with pytest.raises(ModelError, match=r"weights by its name; export the module with torch\.onnx"):
        read.load(tmp_path / name)
