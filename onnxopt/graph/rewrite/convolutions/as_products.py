"""Convolutions in 16 bit whose result is read as tokens (B, L, O), as products, which need no change of layout.

    Conv(x, W, b)                       -> Reshape(MatMul(Reshape(x), W') + b)    where W covers x, in any dtype
    Transpose(Reshape(Conv(x, W, b)))   -> MatMul(patches(x), W') + b     where patches lie side by side

patches: (B, C, H, W) as (B, H/p W/q, C p q), one Transpose; so of volumes. cuDNN is slow for such
convolutions, and its result needs another layout (figures for ViT-base: benchmarks/notes: models). Convolutions along a
sequence compute in channels last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.layout.orders import RANK, RANKS
from onnxopt.graph.match import is_constant, new_integers
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.to_contrib import SIXTEEN_BIT

_OF_ROWS = ("Elu", "Gelu", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
_NO_GAIN = "Conv of {} is as fast as the product; only 16-bit floats gain"


class _Product(RewriteRuleClassBase):
    """What rules of tokens share: the obstacles to a product, and the product."""

    def _obstacle(self, conv: ir.Node, x: ir.Value, w: ir.Value, rank: int) -> str:
        bias = conv.inputs[2] if len(conv.inputs) > 2 else None
        if x.dtype not in SIXTEEN_BIT:
            return _NO_GAIN.format(x.dtype)
        if x.shape is None or len(x.shape) != rank or not isinstance(x.shape[1], int):
            return f"the rank or the channels of Conv's input `{x.name}` are not known"
        if w.const_value is None or w.is_graph_input() or (bias is not None and bias.const_value is None):
            return "Conv's weight or bias is not a constant"
        if conv.attributes.get_int("group", 1) != 1 or any(d != 1 for d in conv.attributes.get_ints("dilations", ())):
            return "Conv has groups or dilations"
        if conv.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
            return "Conv's padding is worked out from the shape (auto_pad)"
        return ""

    def _product(self, op, conv: ir.Node, columns, w: ir.Value, order: tuple[int, ...]):
        """columns (B, L, K) times the weight (O, ...), whose other dims, in this order, become K."""
        tensor = w.const_value
        assert tensor is not None
        array = tensor.numpy().transpose(*order, 0).reshape(-1, tensor.shape.numpy()[0])
        weight = ir.Tensor(np.ascontiguousarray(array), dtype=tensor.dtype, name=f"{w.name}/columns")
        product = op.MatMul(columns, op.initializer(weight))
        return op.Add(product, conv.inputs[2]) if len(conv.inputs) > 2 and conv.inputs[2] is not None else product


class WholeInput(RewriteRuleClassBase):
    """A window that covers its padded input, so that each image gives one row: a classifier's first layer, as VGG's.

    cuDNN's heuristics name engines for it that take 50 times as long. A kernel of one element stays a Conv, which
    gates of channels are recognised by. channels_last: whether the layout of the input will be, so that rows are read
    off it in that order.
    """

    def __init__(self, channels_last: bool) -> None:
        super().__init__()
        self._channels_last = channels_last
        self._columns: dict[tuple[ir.Value, object], ir.Value] = {}  # a weight, the graph that reads it -> its matrix

    def pattern(self, op, x, w):
        return op.Conv(x, w, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["convolved"])

    def check(self, context: MatchContext, x, w, convolved):
        result, inside = MatchResult(), _inside(convolved.producer())
        if isinstance(inside, str):
            return result.fail(inside)
        if any(use.idx != 1 or _inside(use.node) != inside for use in w.uses()):
            return result.fail(f"what else reads the weight `{w.name}` needs it as it is")
        return result

    def rewrite(self, op, x, w, convolved):
        conv, rank, outputs = convolved.producer(), len(x.shape), w.const_value.shape.numpy()[0]
        is_turned = self._channels_last and rank in RANKS and any(dim != 1 for dim in x.shape[2:])
        order = (*range(2, rank), 1) if is_turned else tuple(range(1, rank))
        moved = op.Transpose(x, perm=[0, *order]) if is_turned else x
        inside, known = _inside(conv), self._columns
        assert not isinstance(inside, str)
        if (w, conv.graph) not in known:
            known[w, conv.graph] = op.initializer(_columns(w, inside, order))
        flat = op.Reshape(moved, new_integers(op, [0, math.prod(x.shape[1:])]))
        product = op.MatMul(flat, known[w, conv.graph])
        if len(conv.inputs) > 2 and conv.inputs[2] is not None:
            product = op.Add(product, conv.inputs[2])
        return op.Reshape(product, new_integers(op, [0, outputs, *[1] * (rank - 2)]))


def _inside(conv: ir.Node) -> tuple[slice, ...] | str:
    """The part of the window that is on the input where it covers all of it, else why it does not."""
    if conv.op_type != "Conv" or conv.domain != "" or conv.attributes.get_int("group", 1) != 1:
        return "it is no Conv of one group"
    x, w, y = conv.inputs[0], conv.inputs[1], conv.outputs[0]
    if x is None or x.shape is None or y.shape is None or w is None or w.const_value is None or not is_constant(w):
        return "shapes are not known, or Conv's weight is not a constant"
    kernel, size = w.const_value.shape.numpy()[2:], [dim for dim in x.shape[2:] if isinstance(dim, int) and dim > 0]
    if math.prod(kernel) == 1:
        return "the kernel has one element"
    if len(y.shape) != len(x.shape) or any(dim != 1 for dim in y.shape[2:]):
        return "the result has more pixels than one"
    if len(size) != len(kernel):
        return f"the size of `{x.name}` is not known"
    dilations = conv.attributes.get_ints("dilations", (1,) * len(kernel))
    parts = []
    for count, step, begin, dim in zip(kernel, dilations, _pads_before(conv, kernel, size), size, strict=True):
        taps = [k for k in range(count) if 0 <= k * step - begin < dim]
        if [k * step - begin for k in taps] != list(range(dim)):
            return "the window reads a part of its input"
        parts.append(slice(taps[0], taps[-1] + 1))
    return tuple(parts)


def _pads_before(conv: ir.Node, kernel: Sequence[int], size: Sequence[int]) -> Sequence[int]:
    """How many elements of padding are before each dim, where there is one window."""
    way = conv.attributes.get_string("auto_pad", "NOTSET")
    if way.startswith("SAME"):  # ONNX Runtime takes no dilations beside it
        missing = [max(count - dim, 0) for count, dim in zip(kernel, size, strict=True)]
        return [(pad + (way == "SAME_LOWER")) // 2 for pad in missing]
    none = (0,) * len(kernel)
    return conv.attributes.get_ints("pads", none)[: len(kernel)] if way == "NOTSET" else none


def _columns(w: ir.Value, inside: tuple[slice, ...], order: tuple[int, ...]) -> ir.LazyTensor:
    """A part of the weight (O, ...), whose dims but the first, in this order, are the rows of a matrix."""
    tensor, name = w.const_value, f"{w.name}/columns"
    assert tensor is not None
    outputs, channels = tensor.shape.numpy()[:2]
    rows = channels * math.prod(part.stop - part.start for part in inside)

    def evaluate() -> ir.Tensor:
        array = tensor.numpy()[:, :, *inside].transpose(*order, 0).reshape(rows, outputs)
        return ir.Tensor(np.ascontiguousarray(array), dtype=tensor.dtype, name=name)

    return ir.LazyTensor(evaluate, dtype=tensor.dtype, shape=ir.Shape([rows, outputs]), name=name)


class ActivationOfRows(RewriteRuleClassBase):
    """`f(Reshape(x)) -> Reshape(f(x))` of rows (B, O) that become maps of one element: the product applies f."""

    def __init__(self, activation: str) -> None:
        super().__init__(f"{activation.lower()}_of_rows")
        self._activation = activation

    def pattern(self, op, x, shape):
        maps = op.Reshape(x, shape, _allow_other_attributes=True, _outputs=["maps"])
        return getattr(op, self._activation)(maps, _allow_other_attributes=True, _outputs=["activated"])

    def check(self, context: MatchContext, x, shape, maps, **_):
        result = MatchResult()
        if x.shape is None or len(x.shape) != 2 or maps.shape is None or len(maps.shape) < 3:
            return result.fail("Reshape does not make maps of rows")
        if any(dim != 1 for dim in maps.shape.dims[2:]) or len(maps.uses()) != 1 or maps.is_graph_output():
            return result.fail("the maps have more elements than one, or other readers")
        return result

    def rewrite(self, op, x, shape, maps, activated):
        attributes = {name: attribute.value for name, attribute in activated.producer().attributes.items()}
        reshaped = {name: attribute.value for name, attribute in maps.producer().attributes.items()}
        return op.Reshape(getattr(op, self._activation)(x, **attributes), shape, **reshaped)


class Patches(_Product):
    """Patches side by side (a convolution whose stride is its kernel), flattened and moved before the channels."""

    def pattern(self, op, x, w, shape):
        conv = op.Conv(x, w, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["patches"])
        flat = op.Reshape(conv, shape, _allow_other_attributes=True, _outputs=["flat"])
        return op.Transpose(flat, perm=[0, 2, 1])

    def check(self, context: MatchContext, x, w, patches, flat, **_):
        result = MatchResult()
        conv = patches.producer()
        rank = len(x.shape) if x.shape is not None and len(x.shape) in RANKS else RANK
        if reason := self._obstacle(conv, x, w, rank):
            return result.fail(reason)
        size = w.const_value.shape.numpy()[2:]
        if conv.attributes.get_ints("strides", (1,) * len(size)) != size or any(conv.attributes.get_ints("pads", ())):
            return result.fail("Conv's patches overlap or have gaps, or are padded")
        image = x.shape.dims[2:]
        if not all(isinstance(d, int) and d % p == 0 for d, p in zip(image, size, strict=True)):
            return result.fail(f"the image `{x.name}` is not known to be made of whole patches")
        count = math.prod(d // p for d, p in zip(image, size, strict=True))
        if flat.shape is None or len(flat.shape) != 3 or flat.shape[2] != count or flat.shape[1] != w.shape[0]:
            return result.fail("Reshape does not flatten the patches")
        return result

    def rewrite(self, op, x, w, patches, **_):
        channels, size = x.shape[1], w.const_value.shape.numpy()[2:]
        counts = [d // p for d, p in zip(x.shape.dims[2:], size, strict=True)]
        order = tuple(range(1, len(x.shape)))
        if math.prod(size) == 1:  # tokens, which channels last needs no Transpose for
            flat = op.Transpose(op.Reshape(x, new_integers(op, [0, channels, math.prod(counts)])), perm=[0, 2, 1])
            return self._product(op, patches.producer(), flat, w, order)
        pairs = [n for pair in zip(counts, size, strict=True) for n in pair]
        cut = op.Reshape(x, new_integers(op, [0, channels, *pairs]))
        last = 2 + len(pairs)
        cut = op.Transpose(cut, perm=[0, *range(2, last, 2), 1, *range(3, last, 2)])
        flat = op.Reshape(cut, new_integers(op, [-1, math.prod(counts), channels * math.prod(size)]))
        return self._product(op, patches.producer(), flat, w, order)


# Makes the products.
PRODUCTS = (
    RuleSet(lambda _: [Rooted("Transpose", Patches.rule())]),
    RuleSet(lambda scope: [Rooted("Conv", WholeInput.rule(scope.gpu))]),
    RuleSet(lambda _: [Rooted(name, ActivationOfRows.rule(name)) for name in _OF_ROWS], counted=False),
)
