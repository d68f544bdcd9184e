"""Exported graphs whose products with weights are MatMulNBits, with drawn codes: the same ones in every call."""

from __future__ import annotations

import json
import lzma

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.support import skeletons

BLOCK = 32  # codes of a scale, as the tools write
_DEVIATION = 0.02  # of drawn weights


def graph(name: str, bits: int) -> onnx.ModelProto:
    """The exported graph of this name, in float16, with weights of 4 or 8 bits; 16 leaves its products as they are."""
    model = onnx.load_from_string(lzma.decompress((skeletons.folder_of(name) / f"{name}.onnx.xz").read_bytes()))
    emptied = json.loads((skeletons.folder_of(name) / f"{name}.json").read_text())
    rng = np.random.default_rng(0)
    weights = {t.name: t for t in model.graph.initializer if t.name in emptied}
    products = [n for n in model.graph.node if n.op_type == "MatMul" and n.input[1] in weights and bits < 16]
    for node in products:
        tensor = weights.pop(node.input[1])
        model.graph.initializer.remove(tensor)
        model.graph.initializer.extend(_pack(node, emptied[tensor.name][0], bits, rng))
    for tensor in weights.values():
        dims, dtype = emptied[tensor.name]
        value = rng.standard_normal(dims, dtype=np.float32) * _DEVIATION + (len(dims) == 1)  # those of norms around 1
        tensor.raw_data = value.astype(helper.tensor_dtype_to_np_dtype(dtype)).tobytes()
    if products:
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def _pack(node: onnx.NodeProto, dims: list[int], bits: int, rng: np.random.Generator) -> list[onnx.TensorProto]:
    """Makes a MatMul one of codes. Returns these and their scales."""
    depth, columns = dims
    blocks = depth // BLOCK
    codes = rng.bytes(depth * columns * bits // 8)
    deviation = 2**bits / np.sqrt(12)  # of codes
    scales = (rng.uniform(0.5, 1.5, (columns, blocks)) * _DEVIATION / deviation).astype(np.float16)
    name = node.input[1]
    made = [
        helper.make_tensor(f"{name}.codes", TensorProto.UINT8, (columns, blocks, BLOCK * bits // 8), codes, raw=True),
        helper.make_tensor(f"{name}.scales", TensorProto.FLOAT16, (columns, blocks), scales.tobytes(), raw=True),
    ]
    node.op_type, node.domain = "MatMulNBits", "com.microsoft"
    node.input[:] = [node.input[0], *(t.name for t in made)]
    for key, value in (("K", depth), ("N", columns), ("bits", bits), ("block_size", BLOCK)):
        node.attribute.append(helper.make_attribute(key, value))
    return made
