"""Equal initializers become one, without reading large ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.passes.shared_initializers import ShareInitializersPass
from tests.support.graphs import graph

_MASK = np.tri(64, dtype=np.bool_)
_NAMES = "abc"


def _read(**tensors: ir.TensorProtocol) -> list[str]:
    """The initializers that the nodes of a model read, one each, after the pass."""
    nodes = " ".join(f"{name}1 = Identity({name})" for name in tensors)
    model = graph("float[2] x", "float[2] y", f"{nodes} y = Neg(x)")
    for name, tensor in tensors.items():
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=tensor.shape)  # type: ignore[arg-type]
        model.graph.register_initializer(value)
        (use,) = (node for node in model.graph if node.outputs[0].name == f"{name}1")
        use.replace_input_with(0, value)
    ShareInitializersPass()(model)
    assert {v.name for n in model.graph for v in n.inputs if v and v.name in tensors} == set(model.graph.initializers)
    return [str(node.inputs[0].name) for node in model.graph if node.op_type == "Identity" and node.inputs[0]]


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64])
def test_a_mask_of_each_layer_becomes_one(dtype: type) -> None:
    tensors = {name: ir.tensor(_MASK.astype(dtype)) for name in _NAMES}
    assert _read(**tensors) == ["a", "a", "a"]


def test_others_stay() -> None:
    assert _read(a=ir.tensor(_MASK), b=ir.tensor(~_MASK), c=ir.tensor(_MASK.astype(np.uint8))) == ["a", "b", "c"]
    assert _read(a=ir.tensor(_MASK), b=ir.tensor(_MASK.reshape(32, 128)), c=ir.tensor(_MASK[:32])) == ["a", "b", "c"]
    weights = {name: ir.tensor(_MASK.astype(np.float32)) for name in _NAMES}
    assert _read(**weights) == ["a", "b", "c"]
    assert _read(a=ir.tensor(["x", "y"]), b=ir.tensor(["x", "y"]), c=ir.tensor(["y", "x"])) == ["a", "a", "c"]


class _Unread(ir.Tensor):
    def tobytes(self) -> bytes:
        raise AssertionError("was read")


def test_large_and_lazy_tensors_are_not_read() -> None:
    def fail() -> ir.Tensor:
        raise AssertionError("was read")

    large = [_Unread(np.zeros((1 << 20, 5), np.uint8)) for _ in _NAMES]
    assert _read(**dict(zip(_NAMES, large, strict=True))) == ["a", "b", "c"]
    lazy = [ir.LazyTensor(fail, dtype=ir.DataType.FLOAT, shape=ir.Shape([2])) for _ in _NAMES]
    assert _read(**dict(zip(_NAMES, lazy, strict=True))) == ["a", "b", "c"]


def test_ranges_of_files(tmp_path: Path) -> None:
    """The same range is equal whatever its size, other ranges where they hold the same."""
    array = np.arange(4, dtype=np.float32)
    (tmp_path / "w").write_bytes(array.tobytes() * 2 + bytes(16))

    def at(offset: int) -> ir.ExternalTensor:
        return ir.ExternalTensor(
            "w", offset, 16, ir.DataType.FLOAT, shape=ir.Shape([4]), name=f"t{offset}", base_dir=tmp_path
        )

    assert _read(a=at(0), b=at(16), c=at(16), d=at(32)) == ["a", "a", "a", "d"]
