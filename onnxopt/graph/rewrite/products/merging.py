"""Products of one input with several weights, merged into one product with the weights side by side.

    MultiHeadAttention(x Wq + bq, x Wk + bk, x Wv + bv) -> Attention(x, [Wq Wk Wv], [bq bk bv])
                                                         | MultiHeadAttention(Split(x [Wq Wk Wv] + [bq bk bv]))
    Sdpa(Rotary(heads(x Wq)), Rotary(heads(x Wk)), heads(x Wv)) -> Sdpa of slices of x [Wq Wk Wv]
    GroupQueryAttention(x Wq, x Wk, x Wv) -> GroupQueryAttention(x [Wq Wk Wv]), which takes q, k and v packed
    Mul(act(x Wg), x Wu) -> Mul(act(g), u)    g, u = Split(x [Wg Wu])

The rules require that no weight has another reader, so that the model does not grow. A missing bias counts as zeros.
Products of packed codes are merged like others (packed_weights.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.costs import attention as costs
from onnxopt.costs.attention import AttentionSize
from onnxopt.costs.rewrite import numbers
from onnxopt.graph.match import new_integers
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.attention import hidden_rows
from onnxopt.graph.rewrite.attention.attention_nodes import attends, has_mask, is_for_kernel
from onnxopt.graph.rewrite.products import packed_weights
from onnxopt.graph.rewrite.rule_sets import RuleSet, Scope
from onnxopt.graph.rewrite.to_contrib import SIXTEEN_BIT, rotated, swapped
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.contrib_schemas import CONTRIB, DOMAIN
from onnxopt.program import flash_attention

_ATTENTION_DTYPES = (ir.DataType.FLOAT16, ir.DataType.FLOAT)
_LARGEST_ATTENTION = {dtype: numbers().max_attention_bytes[dtype.bitwidth] for dtype in _ATTENTION_DTYPES}
_ATTENTION_BIAS = 5  # position of the mask among the inputs of MultiHeadAttention and of Attention
_ACTIVATIONS = ("Silu", "Gelu", "Sigmoid", "Relu", "Tanh", "HardSwish", "Mish")  # of gated MLPs


class _Merge(RewriteRuleClassBase):
    def __init__(self, name: str, joiner: Joiner) -> None:
        super().__init__(name)
        self._joiner = joiner

    def _obstacle(self, x: ir.Value, weights: Sequence[ir.Value], biases: Sequence[ir.Value | None]) -> str:
        if len(set(weights)) != len(weights):
            return "two products have the same weight"
        for weight in weights:
            if weight.const_value is None or weight.is_graph_input() or len(weight.const_value.shape) != 2:
                return f"the weight `{weight.name}` is not a constant matrix"
            if len(weight.uses()) != 1 or weight.is_graph_output():
                return f"the weight `{weight.name}` has other readers, so a merged copy would make the model larger"
        if len({(w.const_value.dtype, w.const_value.shape[0]) for w in weights if w.const_value is not None}) != 1:
            return "the weights differ in dtype or in their number of rows"
        if len({None if (packed := packed_weights.of(w)) is None else packed.form() for w in weights}) != 1:
            return "the weights are packed in different ways"
        for weight, bias in zip(weights, biases, strict=True):
            if bias is None:
                continue
            width = weight.const_value.shape[1] if weight.const_value is not None else None
            if bias.const_value is None or bias.is_graph_input() or bias.const_value.shape.numpy() != (width,):
                return f"the bias `{bias.name}` is not a constant vector of {width} elements"
        return ""

    def _merged(self, weights: Sequence[ir.Value]) -> ir.TensorProtocol:
        packed = [p for w in weights if (p := packed_weights.of(w)) is not None]
        if packed:
            return packed_weights.merged(packed, self._joiner, _name(weights))
        return self._joiner.columns([w.const_value for w in weights if w.const_value is not None], _name(weights))

    def _merged_bias(self, weights: Sequence[ir.Value], biases: Sequence[ir.Value | None]) -> ir.Tensor:
        """The biases side by side, zeros where there is none."""
        rows = []
        for weight, bias in zip(weights, biases, strict=True):
            assert weight.const_value is not None
            dtype, width = weight.const_value.dtype, weight.const_value.shape.numpy()[1]
            tensor = bias.const_value if bias is not None else None
            rows.append(np.zeros(width, dtype.numpy()) if tensor is None else tensor.numpy())
        return ir.Tensor(np.concatenate(rows), dtype=dtype, name=f"{_name(weights)}/bias")

    def _product(self, op, x: ir.Value, weights: Sequence[ir.Value], biases: Sequence[ir.Value | None]):
        product = op.MatMul(x, op.initializer(self._merged(weights)))
        if all(b is None for b in biases):
            return product
        return op.Add(product, op.initializer(self._merged_bias(weights, biases)))

    def _parts(self, op, product, weights: Sequence[ir.Value]):
        widths = _widths(weights)
        sizes = op.Constant(value=ir.tensor(widths, dtype=ir.DataType.INT64))
        return op.Split(product, sizes, axis=-1, _outputs=len(widths))


def _name(weights: Sequence[ir.Value]) -> str:
    return "+".join(str(w.name) for w in weights)


def _widths(weights: Sequence[ir.Value]) -> list[int]:
    return [w.const_value.shape.numpy()[1] for w in weights if w.const_value is not None]


def _projection(op, x, name: str):
    weight, bias = pattern.Var(f"w{name}"), pattern.Var(f"b{name}", can_match_none=True)
    product = op.MatMul(x, weight)
    return pattern.OrValue([op.Add(product, bias), op.Add(bias, product), product])


class SelfAttention(_Merge):
    """q, k and v of one MultiHeadAttention, as parts of one product.

    Attention splits its product again in the kernel that adds the bias, which moves the bytes of q, k and v twice. A
    gemm region in 16 bit writes the parts itself, but runs a product for each of them, and these fill the GPU less. The
    sizes are in data/rewrite.json. Where a kernel of ours runs the attention, it reads the parts where they are, in
    one product.
    """

    def __init__(self, name: str, joiner: Joiner, scope: Scope) -> None:
        super().__init__(name, joiner)
        self._scope = scope

    def pattern(self, op, x):
        return op.MultiHeadAttention(
            *(_projection(op, x, name) for name in "qkv"),
            _domain=CONTRIB, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"],
        )  # fmt: skip

    def check(self, context: MatchContext, x, wq, wk, wv, y, bq=None, bk=None, bv=None, **_):
        result = MatchResult()
        if reason := self._obstacle(x, (wq, wk, wv), (bq, bk, bv)):
            return result.fail(reason)
        node, widths = y.producer(), _widths((wq, wk, wv))
        if reason := self._unlike_attention(x, widths, node):
            return result.fail(reason)
        if self._is_ours(x, widths, y.producer()):
            return result
        if not self._fits_attention(x, (wq, wk, wv), node) and (x.dtype not in SIXTEEN_BIT or len(set(widths)) != 1):
            return result.fail("splitting one product into q, k and v would cost more than it saves")
        return result

    def _unlike_attention(self, x: ir.Value, widths: Sequence[int], node: ir.Node) -> str:
        """Why Attention cannot replace the MultiHeadAttention `node` of products of x with these widths, if so."""
        if any(v is not None for k, v in enumerate(node.inputs) if k > 2 and k != _ATTENTION_BIAS):
            return "MultiHeadAttention has inputs besides a mask, which Attention reads in another form"
        if widths[0] != widths[1]:
            return "q and k have different widths"
        if x.shape is None or len(x.shape) != 3:
            return f"the projected `{x.name}` is not known to have three dims"
        return ""

    def _is_ours(self, x: ir.Value, widths: Sequence[int], node: ir.Node) -> bool:
        """Whether a kernel of ours runs this attention, which reads the parts where they lie."""
        heads = node.attributes.get_int("num_heads", 0) or 0
        if x.dtype is None or not attends(x.dtype, self._scope.gpu) or x.shape is None:
            return False
        if not heads or any(width % heads for width in widths):
            return False
        width, values = widths[0] // heads, widths[2] // heads
        if flash_attention.why_not(heads, heads, width, values, 1.0):
            return False
        size = AttentionSize(
            self._scope.expected.of(x.shape[1]), width, packed=True, hopper=flash_attention.is_hopper(width, values),
            bias="scores" if has_mask(node) else "",
            dtype=x.dtype.name.lower(),
        )  # fmt: skip
        return is_for_kernel(node) or costs.pays(size)

    def _fits_attention(self, x: ir.Value, weights: Sequence[ir.Value], node: ir.Node) -> bool:
        """Whether Attention takes weights of this dtype, and q, k and v are small enough for it, or of unknown size."""
        if packed_weights.of(weights[0]) is not None or x.dtype not in _LARGEST_ATTENTION or x.shape is None:
            return False
        if hidden_rows.WEIGH in node.attributes:  # its queries become zeros
            return False
        rows = [d for d in x.shape.dims[:2] if isinstance(d, int)]
        size = rows[0] * rows[1] * sum(_widths(weights)) * x.dtype.itemsize if len(rows) == 2 else 0
        return size <= _LARGEST_ATTENTION[x.dtype]

    def rewrite(self, op, x, wq, wk, wv, y, bq=None, bk=None, bv=None, **_):
        node, weights = y.producer(), (wq, wk, wv)
        widths = _widths(weights)
        if self._is_ours(x, widths, node) or not self._fits_attention(x, weights, node):
            parts = self._parts(op, self._product(op, x, weights, (bq, bk, bv)), weights)
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            return op.MultiHeadAttention(*parts, *node.inputs[3:], _domain=CONTRIB, **attributes)
        weight = op.initializer(self._merged(weights))
        bias = op.initializer(self._merged_bias(weights, (bq, bk, bv)))
        return self._attention(op, node, x, weight, bias, widths)

    def _attention(self, op, node: ir.Node, x, weight, bias, widths: Sequence[int]):
        """Attention in place of the MultiHeadAttention `node`."""
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        if widths[2] != widths[0]:
            attributes["qkv_hidden_sizes"] = list(widths)
        mask = node.inputs[_ATTENTION_BIAS] if len(node.inputs) > _ATTENTION_BIAS else None
        extra = [] if mask is None else [None, None, mask]
        return op.Attention(x, weight, bias, *extra, _domain=CONTRIB, **attributes)


class GroupQueryProjections(_Merge):
    """q, k and v of one GroupQueryAttention, which takes them packed."""

    def pattern(self, op, x):
        return op.GroupQueryAttention(
            *(_projection(op, x, name) for name in "qkv"),
            _domain=CONTRIB, _allow_other_inputs=True, _allow_other_attributes=True,
            _outputs=["y", "present_key", "present_value"],
        )  # fmt: skip

    def check(self, context: MatchContext, x, wq, wk, wv, bq=None, bk=None, bv=None, **_):
        reason = self._obstacle(x, (wq, wk, wv), (bq, bk, bv))
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x, wq, wk, wv, y, bq=None, bk=None, bv=None, **_):
        node = y.producer()
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        product = self._product(op, x, (wq, wk, wv), (bq, bk, bv))
        return op.GroupQueryAttention(
            product, None, None, *node.inputs[3:], _domain=CONTRIB, _outputs=3, **attributes
        )  # fmt: skip


class HeadProjections(_Merge):
    """q, k and v of an attention with rotary embedding or grouped heads, as slices of one product.

    The slices may differ in width. A pointwise region cuts and prepares them in one kernel.
    """

    def __init__(self, rotary: bool, joiner: Joiner, gpu: bool) -> None:
        super().__init__("merge_rotary_heads" if rotary else "merge_heads", joiner)
        self._rotary, self._gpu = rotary, gpu

    def pattern(self, op, x, cos, sin):
        def heads(name: str):
            split = op.Reshape(_projection(op, x, name), _allow_other_inputs=True, _allow_other_attributes=True)
            return op.Transpose(split, perm=[0, 2, 1, 3], _outputs=[name])

        q, k = (op.Rotary(heads(n), cos, sin, _domain=DOMAIN) if self._rotary else heads(n) for n in "qk")
        return op.Sdpa(
            q, k, heads("v"), _domain=DOMAIN, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"]
        )

    def check(self, context: MatchContext, x, q, k, v, wq, wk, wv, bq=None, bk=None, bv=None, **_):
        result = MatchResult()
        if not attends(q.dtype, self._gpu):
            return result.fail(f"attention of {q.dtype} runs no faster from one product; only onnxopt's kernels gain")
        if not self._rotary and q.shape[1] == k.shape[1]:
            return result.fail("every query head has keys of its own, which the rule SelfAttention merges")
        if any(value.shape is None or not isinstance(value.shape[1], int) for value in (q, k, v)):
            return result.fail("the number of heads is not known")
        reason = self._obstacle(x, (wq, wk, wv), (bq, bk, bv))
        return result.fail(reason) if reason else result

    def rewrite(self, op, x, q, k, v, y, wq, wk, wv, bq=None, bk=None, bv=None, cos=None, sin=None):
        node, weights = y.producer(), (wq, wk, wv)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        product = self._product(op, x, weights, (bq, bk, bv))
        ends = np.cumsum(_widths(weights)).tolist()
        heads = []
        for begin, end, like in zip([0, *ends], ends, (q, k, v), strict=False):
            # No Split: a region would have to contain all of its parts.
            part = op.Slice(product, new_integers(op, [begin]), new_integers(op, [end]), new_integers(op, [-1]))
            split = op.Reshape(part, new_integers(op, [0, 0, like.shape[1], like.shape[3]]))
            heads.append(swapped(op, split))
            heads[-1].shape, heads[-1].dtype = like.shape, like.dtype
        if self._rotary:
            heads[:2] = [op.Rotary(x, cos, sin, _domain=DOMAIN) for x in heads[:2]]
            for rotated_heads, like in zip(heads, (q, k), strict=False):
                rotated_heads.shape, rotated_heads.dtype = like.shape, like.dtype
        return op.Sdpa(*heads, *node.inputs[3:], _domain=DOMAIN, **attributes)


class CachedProjections(GroupQueryProjections):
    """q, k and v of one token behind a cache, as one product; a fused kernel rotates q and k in place.

    GroupQueryAttention takes the product packed, and appends k and v to the cache.
    """

    def pattern(self, op, x, cos, sin):
        def heads(name: str):
            split = op.Reshape(_projection(op, x, name), _allow_other_inputs=True, _allow_other_attributes=True)
            return op.Transpose(split, perm=[0, 2, 1, 3], _outputs=[name])

        def flat(value):
            return op.Reshape(op.Transpose(value, perm=[0, 2, 1, 3]), _allow_other_inputs=True)

        q, k = (op.Rotary(heads(n), cos, sin, _domain=DOMAIN) for n in "qk")
        return op.GroupQueryAttention(
            flat(q), flat(k), flat(heads("v")),
            _domain=CONTRIB, _allow_other_inputs=True, _allow_other_attributes=True,
            _outputs=["y", "present_key", "present_value"],
        )  # fmt: skip

    def rewrite(self, op, x, cos, sin, q, k, v, y, wq, wk, wv, bq=None, bk=None, bv=None, **_):
        node, size = y.producer(), k.shape[3]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        rotary, every = q.shape[1] + k.shape[1], q.shape[1] + 2 * k.shape[1]
        product = self._product(op, x, (wq, wk, wv), (bq, bk, bv))
        whole = op.Reshape(product, new_integers(op, [0, 0, every, size]))
        first = op.Slice(whole, new_integers(op, [0]), new_integers(op, [rotary]), new_integers(op, [2]))
        rest = op.Slice(whole, new_integers(op, [rotary]), new_integers(op, [every]), new_integers(op, [2]))
        packed = op.Concat(rotated(op, first, size, cos, sin), rest, axis=2)
        packed = op.Reshape(packed, new_integers(op, [0, 0, every * size]))
        return op.GroupQueryAttention(packed, None, None, *node.inputs[3:], _domain=CONTRIB, _outputs=3, **attributes)


class GateAndUp(_Merge):
    """The gate and up products of a gated MLP. activation: "Silu", spelled g * Sigmoid(g), or a unary operator."""

    def __init__(self, activation: str, gate_first: bool, joiner: Joiner) -> None:
        super().__init__(f"merge_gate_{activation}", joiner)
        self._activation, self._gate_first = activation, gate_first

    def pattern(self, op, x):
        gate, up = self._activated(op, _projection(op, x, "g")), _projection(op, x, "u")
        return op.Mul(gate, up) if self._gate_first else op.Mul(up, gate)

    def _activated(self, op, gate):
        if self._activation == "Silu":
            return op.Mul(gate, op.Sigmoid(gate))
        return getattr(op, self._activation)(gate, _allow_other_attributes=True, _outputs=["activated"])

    def check(self, context: MatchContext, x, wg, wu, bg=None, bu=None, activated=None):
        reason = self._obstacle(x, (wg, wu), (bg, bu))
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x, wg, wu, bg=None, bu=None, activated=None):
        gate, up = self._parts(op, self._product(op, x, (wg, wu), (bg, bu)), (wg, wu))
        if activated is None:
            return op.Mul(op.Mul(gate, op.Sigmoid(gate)), up)
        attributes = {name: attribute.value for name, attribute in activated.producer().attributes.items()}
        return op.Mul(getattr(op, self._activation)(gate, **attributes), up)


def _gate_and_up(activation: str) -> Callable[[Scope], list[Rooted]]:
    """The rules for one activation, with the gate as either operand."""
    return lambda scope: [Rooted("Mul", GateAndUp.rule(activation, first, scope.joiner)) for first in (True, False)]


HEADS = (
    RuleSet(lambda scope: [Rooted("Sdpa", HeadProjections.rule(True, scope.joiner, scope.gpu))], packed=True),
    RuleSet(lambda scope: [Rooted("Sdpa", HeadProjections.rule(False, scope.joiner, scope.gpu))], packed=True),
    RuleSet(
        lambda scope: [Rooted("GroupQueryAttention", CachedProjections.rule("merge_cached", scope.joiner))],
        packed=True,
    ),
)
PROJECTIONS = (
    RuleSet(
        lambda scope: [Rooted("GroupQueryAttention", GroupQueryProjections.rule("merge_group_query", scope.joiner))],
        packed=True,
    ),
    RuleSet(
        lambda scope: [Rooted("MultiHeadAttention", SelfAttention.rule("merge_self_attention", scope.joiner, scope))],
        packed=True,
    ),
)
GATES = tuple(RuleSet(_gate_and_up(activation), packed=True) for activation in _ACTIVATIONS)
