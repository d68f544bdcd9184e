"""Kernels of several artifacts in one SessionOptions: each in a domain of its own, the same ones only once."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.support.custom_ops import custom_ops_artifact as artifact

pytestmark = pytest.mark.usefixtures("library")
F = "float32"
OPS = {"neg": -2.0, "sqrt": 2.0**0.5, "exp": np.exp(2.0)}  # what kernels make of 2; their functions make 2 of it
TWO = np.array([2.0], np.float32)


def domain_of(op: str) -> str:
    return f"onnxopt.{op.encode().hex()}"


def kernel(op: str, folder: Path, name: str | None = None, **fields: object) -> Path:
    """A library whose kernel computes `op` in a domain of its own, named as the kernels of all others are."""
    row = artifact.kernel(artifact.one_op(op, (F,), F))
    return artifact.write(folder, [row], **{"domain": name or domain_of(op), **fields})


def model(op: str) -> onnx.ModelProto:
    """A call of the kernel whose function is the identity, which tells whether the kernel ran."""
    body = [helper.make_node("Identity", ["x0"], ["y0"])]
    return artifact.model(body, [(F, ["n"])], [(F, ["n"])], domain=domain_of(op))


def calls_of_all() -> onnx.ModelProto:
    """One model that calls the functions of every domain."""
    functions, nodes = [], []
    for op in OPS:
        single = model(op)
        functions += single.functions
        nodes.append(helper.make_node(artifact.NAME, ["x0"], [op], domain=domain_of(op)))
    vector = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x0", *OPS)]
    opsets = [helper.make_opsetid("", artifact.OPSET), *(helper.make_opsetid(domain_of(op), 1) for op in OPS)]
    graph = helper.make_graph(nodes, "all", vector[:1], vector[1:])
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)


def run(options: ort.SessionOptions, proto: onnx.ModelProto) -> list[float]:
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [float(y[0]) for y in session.run(None, {"x0": TWO})]


def test_three_libraries_in_one_session_options(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    for op in OPS:
        options.register_custom_ops_library(str(kernel(op, tmp_path / op)))
    for op, expected in OPS.items():
        assert run(options, model(op)) == pytest.approx([expected], rel=1e-6)
        assert run(ort.SessionOptions(), model(op)) == [2.0]
    assert run(options, calls_of_all()) == pytest.approx(list(OPS.values()), rel=1e-6)


def test_the_same_library_and_a_copy_of_it_count_once(tmp_path: Path) -> None:
    library = kernel("neg", tmp_path / "first")
    copy = shutil.copytree(library.parent, tmp_path / "second") / library.name
    options = ort.SessionOptions()
    for path in (library, library, copy):
        options.register_custom_ops_library(str(path))
    assert run(options, model("neg")) == [-2.0]
    other = ort.SessionOptions()
    other.register_custom_ops_library(str(copy))
    assert run(other, model("neg")) == [-2.0]


def test_other_kernels_in_one_domain_are_refused_by_name(tmp_path: Path) -> None:
    first, second = (kernel(op, tmp_path / op, domain_of("sqrt")) for op in ("sqrt", "neg"))
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(first))
    with pytest.raises(Exception, match=r"neg/kernels\.json: the session options have other kernels in the domain"):
        options.register_custom_ops_library(str(second))
    assert run(options, model("sqrt")) == pytest.approx([2.0**0.5])  # those that were registered stay


def test_one_library_with_the_kernels_of_several_folders(tmp_path: Path) -> None:
    folders = {op: op.encode().hex() for op in OPS}
    for op, name in folders.items():
        kernel(op, tmp_path / name).unlink()
    library = artifact.write(tmp_path, [], folders=list(folders.values()))
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    assert run(options, calls_of_all()) == pytest.approx(list(OPS.values()), rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"domain": "onnxopt.x"}, 'domain is "onnxopt.x", and not "onnxopt." with a digest'),
        ({"domain": "com.microsoft"}, 'domain is "com.microsoft"'),
        ({"domain": 1}, "domain is not a text"),
        ({"folders": ["../other"]}, 'folders[0] is "../other", which is no digest'),
        ({"folders": "ab"}, "folders is not an array"),
        ({"folders": ["abcd"]}, "abcd/kernels.json: there is no such file"),
    ],
)
def test_damaged_names(fields: dict[str, object], message: str, tmp_path: Path) -> None:
    library = kernel("neg", tmp_path, **fields)
    with pytest.raises(Exception, match="onnxopt") as caught:
        ort.SessionOptions().register_custom_ops_library(str(library))
    assert message in str(caught.value)
