"""Queries whose every key a finite mask hides, such as those of padding: what they weigh.

    Softmax(Where(shown, scores, low))        all keys alike
    Softmax(Add(scores, mask))                all keys alike where the sum rounds to low, else as if nothing were hidden

float32 rounds a score away beside -3.4e38, float16 beside -65504. Attention operators and kernels add in float32, where
-65504 rounds no score away. So queries of float16 that see no key become zeros, whose scores are all the same. Where a
sum of two masks hides keys, those that both hide weigh nothing beside those that one hides; the sum then stays whole,
but for a window beside a mask that all queries share, which the kernel adds by itself.

    MultiHeadAttention(q, k, v, mask) -> MultiHeadAttention(Where(ReduceMax(mask) > -2e4, q, 0), k, v, mask)

A bias of products of matrices, as of relative positions (SAM, ViTDet), hides no key, and is not read for its largest
numbers.
onnxopt's kernel weighs all keys alike by itself (kinds/flash_attention/hidden_rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.additive_masks import LOWEST_SHOWN
from onnxopt.graph.match import constant, new_integers
from onnxopt.graph.passes.common_subexpressions import keep_apart
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.masks.parts import scalar_of
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.contrib_schemas import CONTRIB
from onnxopt.graph.shapes.value_dims import dims_of, same

LOWEST_ADDED = -1.7e38  # of float32: a sum of two is finite
ROUNDS_AWAY = -1e8  # float32 has steps of 8 from here on
HIDES_IN_A_WINDOW = -5e3  # from where on a kernel takes keys of a window for hidden ones
WEIGH = "hidden"  # the attribute of Sdpa, and of the MultiHeadAttention that it becomes until RULES ran
_ALIKE = ("all", "once", "window")
_AXES_INPUT = 18  # opset from which on ReduceMax has its axes as an input
_BIAS = 5  # position among the inputs of MultiHeadAttention
_CACHED = frozenset({"Concat", "ScatterND", "ScatterElements"})
PRODUCTS = frozenset({"MatMul", "Einsum", "Gemm"})  # of matrices
_MOVES = frozenset({"Transpose", "Reshape", "Expand", "Unsqueeze", "Squeeze", "Cast", "Slice", "Split"})
_LARGEST_FACTOR = 16.0  # of products; a mask of zeros and ones gets a far larger one
_VIEWS = frozenset({"Transpose", "Reshape", "Expand", "Unsqueeze", "Squeeze", "Cast", "DequantizeLinear", "Mul", "Sub"})


def shows_each_query_a_key(masks: Sequence[ir.Value | None]) -> bool:
    """Whether constant masks do: one of bools, true where keys are shown or hidden, or numbers that are all added."""
    arrays = [array for mask in masks if mask is not None and (array := constant(mask)) is not None and array.ndim]
    if not arrays or len(arrays) < sum(mask is not None for mask in masks) or not all(array.size for array in arrays):
        return False
    if len(arrays) == 1 and arrays[0].dtype == bool:
        return bool((arrays[0].any(-1) & ~arrays[0].all(-1)).all())
    if len(arrays) == 1:
        return bool((arrays[0].max(-1) > LOWEST_SHOWN).all())
    return all(array.dtype != bool for array in arrays) and sum(float(a.min()) for a in arrays) > LOWEST_SHOWN


def is_product_bias(mask: ir.Value | None) -> bool:
    """Whether what is added to scores is computed by products of matrices, as biases of relative positions are: such
    sums hide no keys, unless a constant of a product has a number that does. Constants beside them show all."""
    node = None if mask is None else mask.producer()
    if mask is None or node is None or node.domain != "":
        array = None if mask is None else constant(mask)
        return array is not None and array.dtype != bool and array.size > 0 and bool(array.min() > LOWEST_SHOWN)
    if node.op_type in PRODUCTS:
        arrays = [array for v in node.inputs if v is not None and (array := constant(v)) is not None and array.size]
        return all(bool((abs(array) < -LOWEST_SHOWN).all()) for array in arrays)
    if node.op_type in ("Mul", "Div"):
        factor = None if node.inputs[1] is None else constant(node.inputs[1])
        least, most = (1 / _LARGEST_FACTOR, np.inf) if node.op_type == "Div" else (0.0, _LARGEST_FACTOR)
        small = factor is not None and factor.size > 0 and bool(((least <= abs(factor)) & (abs(factor) <= most)).all())
        return small and is_product_bias(node.inputs[0])
    if node.op_type == "Add":
        return all(map(is_product_bias, node.inputs))
    return node.op_type in _MOVES and is_product_bias(node.inputs[0])


def shift_alone(least: float | None, dtype: ir.DataType | None) -> bool:
    """Whether hiding every key of a query changes no weight, as a sum of this dtype rounds no score away.

    least: what hidden keys get. float16 and bfloat16 are not asked: the former rounds on GPUs alone, the latter always.
    """
    return dtype == ir.DataType.FLOAT and least is not None and ROUNDS_AWAY < least <= HIDES_IN_A_WINDOW


def follows_a_cache(keys: ir.Value) -> bool:
    """Whether keys are concatenated to others, or written among them, before they are attended to."""
    node = keys.producer()
    while node is not None and node.op_type in _VIEWS and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type in _CACHED


def unrepeated(mask: ir.Value) -> ir.Value:
    """What an Expand repeats to make the mask, where it does not repeat keys; else the mask."""
    node = mask.producer()
    if node is None or (node.domain, node.op_type) != ("", "Expand"):
        return mask
    source = node.inputs[0]
    if source is None or source.shape is None or len(source.shape) == 0:
        return mask
    return source if same(dims_of(source)[-1], dims_of(mask)[-1]) else mask


def zeroed(op, queries: ir.Value, mask: ir.Value, opset: int, weigh: str):
    """Queries (B, S, N H) or (B, N, S, H) with zeros for those from which a mask of four dims hides every key.

    op: onnxscript's builder. weigh: see `weigh_of`; onnxopt's kernel fuses what zeroes those of "all".
    """
    by_head = queries.shape is not None and len(queries.shape) == 4
    if opset < _AXES_INPUT:
        most = op.ReduceMax(mask, axes=[1, 3], keepdims=int(by_head))
    else:
        most = op.ReduceMax(mask, new_integers(op, [1, 3]), keepdims=int(by_head))
    inside = [most]  # of the kernel, so that each attention has its own
    if not by_head:
        most = op.Unsqueeze(most, new_integers(op, [2]))
        inside.append(most)
    limit, zero = (op.Constant(value=scalar_of(n, ir.DataType.FLOAT16)) for n in (LOWEST_SHOWN, 0.0))
    sees = op.Greater(most, limit) if weigh == "all" else op.LessOrEqual(most, limit)
    result = op.Where(sees, queries, zero) if weigh == "all" else op.Where(sees, zero, queries)
    for value in (*inside, sees) if weigh == "all" else ():
        keep_apart(value)
    result.shape, result.dtype = queries.shape, queries.dtype
    return result


def weighs_alike(sdpa: ir.Node) -> bool:
    """Whether queries of an Sdpa that see no key have to be `zeroed`: of float16, which weigh some keys alike."""
    q = sdpa.inputs[0]
    return q is not None and q.dtype == ir.DataType.FLOAT16 and sdpa.attributes.get_string(WEIGH, "") in _ALIKE


def weigh_of(sdpa: ir.Node, windowed: bool) -> str:
    """What `zeroed` queries of an Sdpa weigh. windowed: a kernel computes its window, and fuses what zeroes them."""
    return "all" if windowed or sdpa.attributes.get_string(WEIGH) == "all" else "once"


def attribute_of(sdpa: ir.Node, windowed: bool) -> dict[str, str]:
    """The attribute of the MultiHeadAttention that an Sdpa becomes, if it needs one."""
    return {WEIGH: weigh_of(sdpa, windowed)} if weighs_alike(sdpa) else {}


class ZeroedQueries(RewriteRuleClassBase):
    """MultiHeadAttention with the attribute `hidden` reads `zeroed` queries. graph: the main one."""

    def __init__(self, graph: ir.Graph) -> None:
        super().__init__("zeroed_queries")
        self._graph = graph

    def pattern(self, op):
        return op.MultiHeadAttention(
            _domain=CONTRIB, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"]
        )

    def check(self, context: MatchContext, y):
        result = MatchResult()
        return result if WEIGH in y.producer().attributes else result.fail("rows have no key or keep their weights")

    def rewrite(self, op, y):
        node = y.producer()
        q, *others = node.inputs
        attributes = {name: a.value for name, a in node.attributes.items() if name != WEIGH}
        weigh = node.attributes.get_string(WEIGH)
        queries = zeroed(op, q, unrepeated(others[_BIAS - 1]), self._graph.opset_imports.get("", 0), weigh)
        return op.MultiHeadAttention(queries, *others, _domain=CONTRIB, **attributes)


RULES = (RuleSet(lambda scope: [Rooted("MultiHeadAttention", ZeroedQueries.rule(scope.graph))], counted=False),)
