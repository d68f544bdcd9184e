"""BatchNormalization that is not behind a convolution.

    BatchNormalization(Reshape(Add(MatMul(x, w), b)), ...) -> Reshape(Add(MatMul(x, s w), s b + t))    also of Flatten
    BatchNormalization(Gemm(x, w, b), ...)                 -> Gemm(x, s w, s b + t)
    BatchNormalization(x, ...) of a matrix, or beside elementwise nodes and Transposes -> Add(Mul(x, s), t)

s = gamma / sqrt(variance + epsilon) and t = beta - s mean, of each channel, in float64 and rounded once. Vision models
with linear layers normalize their results over [batch * tokens, channels]. One kernel runs elementwise nodes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.convolutions.constants import factor_and_term, why_not_constant
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.weights import FLOATS, Joiner, array_of, loses_precision, rounded
from onnxopt.program.operators.table import OPERATORS

_MAP_RANK = 4  # the rank of what the layout pass takes apart itself
_MATRIX_RANK = 2  # ONNX Runtime 1.31 ends the process with `prefer_nhwc` on the one model that was seen to have these


class NormalizedProduct(RewriteRuleClassBase):
    """operator: "MatMul" or "Gemm", whose result [rows, columns] is normalized."""

    def __init__(self, operator: str, joiner: Joiner) -> None:
        super().__init__(f"normalized_{operator}")
        self._operator, self._joiner = operator, joiner

    def pattern(self, op, x, w):
        bias = pattern.Var("b", can_match_none=True)
        if self._operator == "Gemm":
            flat = op.Gemm(x, w, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["product"])
        else:
            product = op.MatMul(x, w, _outputs=["product"])
            total = pattern.OrValue([op.Add(product, bias), op.Add(bias, product), product], name="total")
            reshaped = op.Reshape(total, pattern.Var("shape"), _allow_other_attributes=True, _outputs=["flat"])
            flattened = op.Flatten(total, _allow_other_attributes=True, _outputs=["flattened"])
            flat = pattern.OrValue([reshaped, flattened, total])
        return op.BatchNormalization(
            flat, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["normalized"]
        )

    def check(
        self, context: MatchContext, x, w, product, normalized, total=None, flat=None, flattened=None, b=None, **_
    ):
        result = MatchResult()
        if reason := why_not_constant(normalized.producer()):
            return result.fail(reason)
        for value in {v for v in (product, total, flat, flattened) if v is not None}:
            if len(value.uses()) != 1 or value.is_graph_output():
                return result.fail(f"the product's result `{value.name}` has other readers")
        read = normalized.producer().inputs[0]
        if read.shape is None or len(read.shape) != 2:
            return result.fail("the channels of the BatchNormalization are not the product's columns")
        if self._operator == "Gemm":
            if any(product.producer().attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")):
                return result.fail("Gemm scales its product or its bias")
            b = _third(product.producer())
        if reason := self._obstacle(w, b, product, normalized.producer()):
            return result.fail(reason)
        folded = self._folded(w, b, product.producer(), normalized.producer())
        return result.fail(folded) if isinstance(folded, str) else result

    def _obstacle(self, w: ir.Value, b: ir.Value | None, product: ir.Value, normalization: ir.Node) -> str:
        if not is_constant(w) or w.const_value is None or len(w.const_value.shape) != 2:
            return f"the weight `{w.name}` is not a constant matrix"
        if w.const_value.dtype not in FLOATS or normalization.outputs[0].dtype != w.const_value.dtype:
            return f"the weight `{w.name}` is not of the floats of the result"
        if len(w.uses()) != 1:
            return f"the weight `{w.name}` has other readers, so a folded copy would make the model larger"
        columns = w.const_value.shape.numpy()[0 if _is_by_rows(product.producer()) else 1]
        gamma = normalization.inputs[1]
        if gamma is None or gamma.const_value is None or gamma.const_value.size != columns:
            return "the channels of the BatchNormalization are not the product's columns"
        if b is None:
            return ""
        if not is_constant(b) or b.const_value is None or b.const_value.size not in (1, columns):
            return f"the bias `{b.name}` is not a constant with one value a column"
        return "" if b.const_value.size == (b.const_value.shape.numpy() or (1,))[-1] else f"`{b.name}` is no bias"

    def _folded(
        self, w: ir.Value, b: ir.Value | None, product: ir.Node | None, normalization: ir.Node
    ) -> tuple[ir.Tensor, ir.Tensor] | str:
        """The matrix and the bias, or the reason why the normalization stays."""
        assert w.const_value is not None
        dtype, by_rows = w.const_value.dtype, _is_by_rows(product)
        factor, term = factor_and_term(normalization)
        with np.errstate(invalid="ignore", over="ignore"):
            exact = array_of(w) * (factor[:, None] if by_rows else factor)
            weight = rounded(exact, dtype, f"{w.name}/normalized")
            shifted = term if b is None else term + factor * array_of(b).reshape(-1)
            bias = rounded(shifted, dtype, f"{w.name}/bias")
        if not all(np.isfinite(t.numpy().astype(np.float64)).all() for t in (weight, bias)):
            return f"the folded weight or bias overflows in {dtype}"
        if loses_precision(exact, weight, channels=0 if by_rows else 1):
            return "the weights of a column would become subnormal in float16"
        return weight, bias

    def rewrite(self, op, x, w, product, normalized, flat=None, flattened=None, shape=None, b=None, **_):
        node = product.producer()
        if self._operator == "Gemm":
            b = _third(node)
        folded = self._folded(w, b, node, normalized.producer())
        assert not isinstance(folded, str)
        weight, bias = folded
        constant = op.initializer(self._joiner.constant(weight.numpy(), weight.dtype, str(weight.name)))
        if self._operator == "Gemm":
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            return op.Gemm(x, constant, op.initializer(bias), **attributes)
        total = op.Add(op.MatMul(x, constant), op.initializer(bias))
        if flattened is not None:
            return op.Flatten(total, axis=flattened.producer().attributes.get_int("axis", 1))
        if shape is None:
            return total
        return op.Reshape(total, shape, allowzero=flat.producer().attributes.get_int("allowzero", 0))


class Arithmetic(RewriteRuleClassBase):
    """A BatchNormalization beside elementwise nodes, as such nodes. maps: of a map that the layout pass left NCHW."""

    def __init__(self, maps: bool) -> None:
        super().__init__(f"normalization_beside_elementwise_{maps}")
        self._maps = maps

    def pattern(self, op, x):
        return op.BatchNormalization(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["normalized"])

    def check(self, context: MatchContext, x, normalized, **_) -> MatchResult:
        result, node = MatchResult(), normalized.producer()
        if reason := why_not_constant(node):
            return result.fail(reason)
        if x.shape is None or len(x.shape) == 1 or (len(x.shape) == _MAP_RANK) != self._maps or x.dtype not in FLOATS:
            return result.fail(f"`{x.name}` is a map, whose layout decides, or of a rank or dtype that no kernel takes")
        neighbours = [*normalized.consumers(), *([x.producer()] if len(x.uses()) == 1 else [])]
        beside = any(n is not None and _is_of_a_kernel(n) for n in neighbours)
        if len(x.shape) != _MATRIX_RANK and not beside:
            return result.fail("no neighbour is elementwise: one kernel runs the normalization alone")
        constants = _factor_and_term(node, len(x.shape), x.dtype)
        if not all(np.isfinite(t.numpy().astype(np.float64)).all() for t in constants):
            return result.fail(f"a factor or a term overflows in {x.dtype}")
        return result

    def rewrite(self, op, x, normalized, **_):
        factor, term = _factor_and_term(normalized.producer(), len(x.shape), x.dtype)
        return op.Add(op.Mul(x, op.initializer(factor)), op.initializer(term))


def _is_of_a_kernel(node: ir.Node) -> bool:
    """Whether a kernel computes a node together with the elementwise ones beside it."""
    return (node.domain, node.op_type) in OPERATORS or (node.domain, node.op_type) == ("", "Transpose")


def _factor_and_term(node: ir.Node, rank: int, dtype: ir.DataType) -> list[ir.Tensor]:
    """Tensors that broadcast along the second of `rank` dims."""
    name, arrays = node.outputs[0].name, factor_and_term(node)
    return [
        rounded(array.reshape(-1, *(1,) * (rank - 2)), dtype, f"{name}/{kind}")
        for array, kind in zip(arrays, ("factor", "term"), strict=True)
    ]


def _is_by_rows(product: ir.Node | None) -> bool:
    """Whether the weight has a row for each column of the result."""
    return product is not None and product.op_type == "Gemm" and bool(product.attributes.get_int("transB", 0))


def _third(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


RULES = (
    RuleSet(
        lambda scope: [
            Rooted("BatchNormalization", NormalizedProduct.rule(operator, scope.joiner))
            for operator in ("MatMul", "Gemm")
        ]
    ),
    RuleSet(lambda _: [Rooted("BatchNormalization", Arithmetic.rule(maps=False))]),
)
MAPS = (
    RuleSet(
        lambda scope: [Rooted("BatchNormalization", Arithmetic.rule(maps=True))] if scope.gpu else [], counted=False
    ),
)
