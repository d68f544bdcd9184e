"""Stores the weights of products transposed: MatMul(x, W) becomes MatMul(x, Transpose(W^T)).

A GPU's matrix units read both operands along the dim that is summed over. torch stores weights in this order, and
exporters transpose them. From which sides on, costs/data/rewrite.json says. The GEMM's kernel absorbs the Transpose;
elsewhere ONNX Runtime folds it while it loads the model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxopt.costs.rewrite import numbers
from onnxopt.graph.passes.new_nodes import Keep

_IN_MEMORY = 8 << 20  # bytes of a weight


class TransposeWeightsPass(ir.passes.InPlacePass):
    """Transposes every weight of floats that one MatMul alone reads, as its second operand. Values stay lazy.

    gpu: whether kernels for GPUs are made, which float32 is transposed for. keep: writes large ones to a file, which
    the model would hold in memory while it is written.
    """

    def __init__(self, *, gpu: bool, keep: Keep | None = None) -> None:
        super().__init__()
        self._keep = keep
        of_16_bits = numbers().min_transposed
        self._least = {ir.DataType.FLOAT16: of_16_bits, ir.DataType.BFLOAT16: of_16_bits}
        if gpu:
            self._least[ir.DataType.FLOAT] = numbers().min_transposed_float32

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for weight in list(model.graph.initializers.values()):
            if not _fits(weight, self._least):
                continue
            modified = True
            transposed = _transposed(weight, self._keep)
            model.graph.register_initializer(transposed)
            node = ir.Node("", "Transpose", [transposed], [ir.AttrInt64s("perm", [1, 0])], num_outputs=1)
            node.name, node.outputs[0].name = f"{weight.name}_transpose", f"{weight.name}_turned"
            (reader,) = weight.consumers()
            model.graph.insert_before(reader, node)
            ir.convenience.replace_all_uses_with(weight, node.outputs[0])
            del model.graph.initializers[str(weight.name)]
        return ir.passes.PassResult(model, modified)


def _fits(weight: ir.Value, least: Mapping[ir.DataType, int]) -> bool:
    """least: rows and columns that a weight has, by its dtype."""
    tensor = weight.const_value
    if tensor is None or weight.is_graph_input() or weight.is_graph_output() or tensor.dtype not in least:
        return False
    uses = list(weight.uses())
    return (
        len(tensor.shape) == 2
        and min(tensor.shape.numpy()) >= least[tensor.dtype]
        and len(uses) == 1  # a Transpose with other readers would not be folded into the GEMM
        and all(u.node.op_type == "MatMul" and u.node.domain == "" and u.idx == 1 for u in uses)
        and all(u.node.graph is weight.graph for u in uses)
    )


def _transposed(weight: ir.Value, keep: Keep | None) -> ir.Value:
    tensor = weight.const_value
    assert tensor is not None
    rows, columns = tensor.shape.numpy()
    name = f"{weight.name}_transposed"

    def evaluate() -> ir.Tensor:
        return ir.Tensor(np.ascontiguousarray(tensor.numpy().T), dtype=tensor.dtype, name=name)

    shape = ir.Shape([columns, rows])
    stored: ir.TensorProtocol = ir.LazyTensor(evaluate, tensor.dtype, shape, name=name)
    if keep is not None and tensor.nbytes > _IN_MEMORY:
        stored = keep(np.ascontiguousarray(_array(tensor).T), tensor.dtype, name)
    return ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=stored)


def _array(tensor: ir.TensorProtocol) -> np.ndarray:
    """The tensor's array. Its file is mapped until the array is freed."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor.numpy()
    return np.memmap(tensor.path, tensor.dtype.numpy(), "r", tensor.offset or 0, tuple(tensor.shape.numpy()))
