"""The table of rowwise operators: what each means, as reductions along a row and pointwise arithmetic.

The rows are written over Expr, like those of operators/table.py. Type inference, the search for regions, lowering and
the tests read them. The definitions are those of the ONNX operator specification and, for com.microsoft, of ONNX
Runtime's ContribOperators.md. `c.sum` and its kind reduce along the row: their results have one value a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from onnxopt.program.dtypes import FLOATS, NUMBERS
from onnxopt.program.expressions import Expr
from onnxopt.program.operators.result_dtypes import ResultDtype, always, operand_dtype, same

REDUCE = "reduce_"  # what the names of the instructions that reduce begin with


def reduce(kind: str, x: Expr) -> Expr:
    """x reduced along the row. kind: sum, prod, max or min."""
    return x.builder.emit(f"{REDUCE}{kind}", x.dtype, x, exact_in=x.exact_in if kind in ("max", "min") else None)


@dataclasses.dataclass(frozen=True)
class RowCall:
    """One use of an operator: its operands in compute dtype (None: left out) and its attributes.

    operand: storage dtype of the first operand. reduce: how an operand is reduced to one value a row;
    kinds/rowwise/index_lowering.py puts another function in its place.
    """

    args: tuple[Expr | None, ...]
    attributes: Mapping[str, Any]
    operand: str
    reduce: Callable[[str, Expr], Expr] = reduce

    @property
    def x(self) -> Expr:
        """The first operand. It has the shape of the domain."""
        first = self.args[0]
        if first is None:
            raise ValueError("The operator has no data input")
        return first

    def attr(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)

    def arg(self, k: int) -> Expr | None:
        return self.args[k] if k < len(self.args) else None

    def sum(self, x: Expr) -> Expr:
        return self.reduce("sum", x)

    def max(self, x: Expr) -> Expr:
        return self.reduce("max", x)

    def mean(self, x: Expr) -> Expr:
        return self.sum(x) / self.length(x)

    def length(self, x: Expr) -> Expr:
        """The number of elements of a row."""
        return x.builder.emit("length", x.dtype)

    def position(self) -> Expr:
        """An element's position in its row, as int64."""
        return self.x.builder.emit("position", "int64")

    def quotient(self, x: Expr, row: Expr) -> Expr:
        """x / row; x * (1 / row) for 16-bit results, whose rounding hides the half ulp of float32 that this costs."""
        return x * (1.0 / row) if self.operand in ("float16", "bfloat16") else x / row

    def scaled(self, x: Expr, scale: Expr | None, bias: Expr | None) -> Expr:
        x = x if scale is None else x * _same(scale, x)
        return x if bias is None else x + _same(bias, x)


def _same(x: Expr, like: Expr) -> Expr:
    return x.cast(like.dtype)


@dataclasses.dataclass(frozen=True)
class RowOperator:
    """One row of the table.

    name, domain: ONNX op type and its domain. since, before: the row holds from the one version on, up to but not
        including the other.
    meaning: all outputs of the operator, in terms of the operands.
    axes: which axes are reduced. "axes": those of the attribute or second input of this name. "axis": the one of the
        attribute. "from axis": from that one to the last. "spatial": from axis 2 to the last. "groups": as "spatial",
        together with the channels of a group.
    axis: the default of the attribute. default_axes: the default of "axes", where that is not all axes.
    operands: how many inputs are values; the inputs behind them state axes. channels: operands that have one value a
        channel (axis 1).
    row_outputs: outputs with one value a row. result: the dtype of the first output.
    dtypes: storage dtypes that the operands may have. alone: a node of this operator is worth a kernel of its own.
    attributes: attribute sets that tests try. samples: where tests draw inputs. ulp: how far the result may be from the
        reference in tests, in ulp of the storage dtype.
    """

    name: str
    since: int
    axes: str
    meaning: Callable[[RowCall], tuple[Expr, ...]]
    before: int | None = None
    domain: str = ""
    axis: int = -1
    default_axes: tuple[int, ...] = ()
    operands: int = 1
    channels: frozenset[int] = frozenset()
    row_outputs: frozenset[int] = frozenset()
    dtypes: frozenset[str] = FLOATS
    result: ResultDtype = same
    alone: bool = True
    attributes: tuple[Mapping[str, Any], ...] = ({},)
    samples: tuple[float, float] = (-4.0, 4.0)
    ulp: int = 8


def _reduction(name: str, meaning: Callable[[RowCall, Expr], Expr], **fields: Any) -> RowOperator:
    return RowOperator(
        name, 1, "axes", lambda c: (meaning(c, c.x),), row_outputs=frozenset({0}),
        attributes=({}, {"keepdims": 0}), **fields
    )  # fmt: skip


def _arg(c: RowCall, kind: str) -> tuple[Expr, ...]:
    """The first or last position of the largest or smallest element, or of a NaN where the row has one."""
    x = c.x.narrow(c.operand)
    best = x.eq(c.reduce(kind, x))
    if x.is_float:
        best = best.apply("or", x.isnan())
    last = bool(c.attr("select_last_index", 0))
    other = c.x.builder.const(-1 if last else 2**62, "int64")
    return (c.reduce("max" if last else "min", best.where(c.position(), other)),)


def _arg_reduction(name: str, kind: str) -> RowOperator:
    attributes = ({"axis": -1}, {"axis": 1, "keepdims": 0}, {"axis": 0, "select_last_index": 1})
    return RowOperator(
        name, 1, "axis", lambda c: _arg(c, kind), axis=0, dtypes=NUMBERS, result=always("int64"),
        row_outputs=frozenset({0}), attributes=attributes,
    )  # fmt: skip


def _guarded(m: Expr) -> Expr:
    """The maximum m, or 0 where it is infinite, so that x - m stays infinite instead of NaN."""
    return m.isinf().where(m.builder.const(0.0, m.dtype), m)


def _log_sum_exp(c: RowCall, x: Expr) -> Expr:
    m = _guarded(c.max(x))
    return c.sum((x - m).exp()).log() + m


def _softmax(c: RowCall) -> tuple[Expr, ...]:
    e = (c.x - c.max(c.x)).exp()
    return (c.quotient(e, c.sum(e)),)


def _log_softmax(c: RowCall) -> tuple[Expr, ...]:
    shifted = c.x - c.max(c.x)
    return (shifted - c.sum(shifted.exp()).log(),)


def _normalized(c: RowCall, x: Expr, epsilon: float) -> tuple[Expr, Expr, Expr]:
    mean = c.mean(x)
    centered = x - mean
    inverse = 1.0 / (c.mean(centered * centered) + epsilon).sqrt()
    return centered * inverse, mean, inverse


def _layer_norm(c: RowCall) -> tuple[Expr, ...]:
    normal, mean, inverse = _normalized(c, c.x, c.attr("epsilon", 1e-5))
    return c.scaled(normal, c.arg(1), c.arg(2)), mean, inverse


def _rms_norm(c: RowCall) -> tuple[Expr, ...]:
    inverse = 1.0 / (c.mean(c.x * c.x) + c.attr("epsilon", 1e-5)).sqrt()
    return c.scaled(c.x * inverse, c.arg(1), None), inverse


def _skip(c: RowCall, bias: Expr | None) -> Expr:
    """The sum that is normalized: the first operand, the skip connection and the bias."""
    skip = c.arg(1)
    x = c.x if skip is None else c.x + _same(skip, c.x)
    return x if bias is None else x + _same(bias, c.x)


def _skip_layer_norm(c: RowCall) -> tuple[Expr, ...]:
    x = _skip(c, c.arg(4))
    normal, mean, inverse = _normalized(c, x, c.attr("epsilon", 1e-12))
    return c.scaled(normal, c.arg(2), c.arg(3)), mean, inverse, x


def _skip_rms_norm(c: RowCall) -> tuple[Expr, ...]:
    x = _skip(c, c.arg(3))
    inverse = 1.0 / (c.mean(x * x) + c.attr("epsilon", 1e-12)).sqrt()
    return c.scaled(x * inverse, c.arg(2), None), c.mean(x), inverse, x


def _mean_variance_norm(c: RowCall) -> tuple[Expr, ...]:
    centered = c.x - c.mean(c.x)
    return (centered / (c.mean(centered * centered).sqrt() + 1e-9),)


def _spatial_norm(c: RowCall) -> tuple[Expr, ...]:
    return (c.scaled(_normalized(c, c.x, c.attr("epsilon", 1e-5))[0], c.arg(1), c.arg(2)),)


def _lp_norm(c: RowCall) -> tuple[Expr, ...]:
    norm = c.sum(c.x.abs()) if c.attr("p", 2) == 1 else c.sum(c.x * c.x).sqrt()
    zero = norm.eq(0.0)
    return (zero.where(c.x.builder.const(0.0, c.x.dtype), c.x / norm),)


_SUMMED = FLOATS | {"int32", "int64", "uint32", "uint64"}
_OLD_FLOATS = FLOATS - {"bfloat16"}
_CONTRIB = "com.microsoft"
_PAIR: tuple[Mapping[str, Any], ...] = ({}, {"axis": 1}, {"axis": 0})
_ROWS = (
    _reduction("ReduceSum", lambda c, x: c.sum(x), dtypes=_SUMMED, samples=(0.1, 4.0)),
    _reduction("ReduceMean", lambda c, x: c.mean(x), samples=(0.1, 4.0)),
    _reduction("ReduceMax", lambda c, x: c.max(x), dtypes=NUMBERS),
    _reduction("ReduceMin", lambda c, x: c.reduce("min", x), dtypes=NUMBERS),
    _reduction("ReduceProd", lambda c, x: c.reduce("prod", x), samples=(0.8, 1.25), ulp=32),
    _reduction("ReduceL1", lambda c, x: c.sum(x.abs())),
    _reduction("ReduceL2", lambda c, x: c.sum(x * x).sqrt()),
    _reduction("ReduceSumSquare", lambda c, x: c.sum(x * x)),
    _reduction("ReduceLogSum", lambda c, x: c.sum(x).log(), samples=(0.1, 4.0)),
    _reduction("ReduceLogSumExp", _log_sum_exp),
    _arg_reduction("ArgMax", "max"),
    _arg_reduction("ArgMin", "min"),
    RowOperator("Softmax", 13, "axis", _softmax, attributes=_PAIR),
    RowOperator("Softmax", 1, "from axis", _softmax, before=13, axis=1, dtypes=_OLD_FLOATS),
    RowOperator("LogSoftmax", 13, "axis", _log_softmax, attributes=_PAIR),
    RowOperator("LogSoftmax", 1, "from axis", _log_softmax, before=13, axis=1, dtypes=_OLD_FLOATS),
    RowOperator("LayerNormalization", 17, "from axis", _layer_norm, operands=3, row_outputs=frozenset({1, 2}), ulp=16),
    # Not SimplifiedLayerNormalization, ONNX Runtime's own in ONNX's domain: in a function's body it ends the process.
    RowOperator(
        "SkipLayerNormalization", 1, "from axis", _skip_layer_norm, domain=_CONTRIB, operands=5,
        row_outputs=frozenset({1, 2}), alone=False, ulp=16,
    ),
    RowOperator(
        "SkipSimplifiedLayerNormalization", 1, "from axis", _skip_rms_norm, domain=_CONTRIB, operands=4,
        row_outputs=frozenset({1, 2}), alone=False,
    ),
    RowOperator(
        "MeanVarianceNormalization", 9, "axes", _mean_variance_norm, default_axes=(0, 2, 3),
        attributes=({"axes": (1,)}, {"axes": (-1,)}), ulp=16,
        dtypes=frozenset({"float32"}),  # ONNX defines it by float32 constants, so ONNX Runtime refuses others in a body
    ),
    RowOperator("RMSNormalization", 23, "from axis", _rms_norm, operands=2, result=operand_dtype(1)),
    RowOperator("InstanceNormalization", 6, "spatial", _spatial_norm, operands=3, channels=frozenset({1, 2}), ulp=16),
    RowOperator("GroupNormalization", 21, "groups", _spatial_norm, operands=3, channels=frozenset({1, 2}), ulp=16),
    RowOperator("LpNormalization", 1, "axis", _lp_norm, attributes=({"p": 1}, {"p": 2}), samples=(0.1, 4.0)),
    RowOperator("GlobalAveragePool", 1, "spatial", lambda c: (c.mean(c.x),), row_outputs=frozenset({0})),
    RowOperator("GlobalMaxPool", 1, "spatial", lambda c: (c.max(c.x),), row_outputs=frozenset({0})),
)  # fmt: skip

ROW_OPERATORS: dict[tuple[str, str], tuple[RowOperator, ...]] = {
    key: tuple(row for row in _ROWS if (row.domain, row.name) == key)
    for key in dict.fromkeys((row.domain, row.name) for row in _ROWS)
}


def find(domain: str, op_type: str, version: int | None) -> RowOperator | None:
    """The row for an operator of a model importing `domain` at `version`; None where the table does not cover it."""
    if version is None:
        return None
    rows = ROW_OPERATORS.get(("" if domain == "ai.onnx" else domain, op_type), ())
    return next((r for r in rows if r.since <= version and (r.before is None or version < r.before)), None)


def keeps_shape(domain: str, op_type: str) -> bool:
    """Whether the first output of an operator has the shape of its first operand."""
    return any(0 not in row.row_outputs for row in ROW_OPERATORS.get((domain, op_type), ()))
