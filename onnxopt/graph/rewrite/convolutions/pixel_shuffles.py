"""Channels of a convolution are stored in the order in which the DepthToSpace after it reads neighbouring pixels.

    DepthToSpace<mode = CRD>(Conv(x, w, b)) -> DepthToSpace<mode = DCR>(Conv(x, w', b'))

In mode CRD, the channels of one pixel of the result are blocksize² apart in those of the convolution. In mode DCR they
are side by side, so that in channels last whole rows of blocksize pixels are copied. The weight's channels change their
places; no value changes. Activations of one operand may be between.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet

_ELEMENTWISE = frozenset(
    {"Celu", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Selu", "Sigmoid"}
    | {"Softplus", "Softsign", "Swish", "Tanh"}
)


class PixelShuffle(RewriteRuleClassBase):
    def pattern(self, op, x):
        return op.DepthToSpace(x, mode="CRD", _allow_other_attributes=True, _outputs=["shuffled"])

    def check(self, context: MatchContext, x: ir.Value, shuffled: ir.Value) -> MatchResult:
        producers = _producers(x)
        if isinstance(producers, str):
            return MatchResult().fail(producers)
        return MatchResult()

    def rewrite(self, op, x: ir.Value, shuffled: ir.Value):
        shuffle, producers = shuffled.producer(), _producers(x)
        assert shuffle is not None and not isinstance(producers, str)
        block = shuffle.attributes.get_int("blocksize", 1) or 1
        conv, *activations = producers
        data, *constants = conv.inputs
        y = op.Conv(
            data,
            *(None if c is None else op.initializer(_reordered(c, block)) for c in constants),
            **{name: attribute.value for name, attribute in conv.attributes.items()},
        )
        for node in activations:
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            y = getattr(op, node.op_type)(y, *node.inputs[1:], **attributes)
        return op.DepthToSpace(y, blocksize=block, mode="DCR")


def _producers(x: ir.Value) -> list[ir.Node] | str:
    """A Conv whose constants nothing else reads, and the activations after it; or what else there is."""
    activations: list[ir.Node] = []
    while True:
        node = x.producer()
        if node is None or node.domain != "" or len(x.uses()) != 1 or x.is_graph_output():
            return f"`{x.name}` is not computed by a Conv for DepthToSpace alone"
        if node.op_type == "Conv":
            break
        if node.op_type not in _ELEMENTWISE or any(v is not None and not _is_scalar(v) for v in node.inputs[1:]):
            return f"{node.op_type} between Conv and DepthToSpace may be one that tells channels apart"
        activations.insert(0, node)
        data = node.inputs[0]
        assert data is not None
        x = data
    if node.attributes.get_int("group", 1) != 1:
        return "Conv has several groups"
    for value in node.inputs[1:]:
        if value is not None and (not is_constant(value) or value.const_value is None or len(value.uses()) != 1):
            return f"`{value.name}` is not a constant of this Conv alone"
    return [node, *activations]


def _is_scalar(value: ir.Value) -> bool:
    return is_constant(value) and value.const_value is not None and value.const_value.size == 1


def _reordered(value: ir.Value, block: int) -> ir.LazyTensor:
    """A weight or bias with the output channels of DCR, from those of CRD."""
    tensor, name = value.const_value, f"{value.name}/dcr"
    assert tensor is not None

    def evaluate() -> ir.Tensor:
        array = tensor.numpy()
        apart = array.reshape(-1, block * block, *array.shape[1:])
        return ir.Tensor(np.ascontiguousarray(apart.swapaxes(0, 1)).reshape(array.shape), dtype=tensor.dtype, name=name)

    return ir.LazyTensor(evaluate, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)


RULES = (RuleSet(lambda _: [Rooted("DepthToSpace", PixelShuffle.rule())]),)
