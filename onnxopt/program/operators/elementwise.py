"""Operator: what a row of the operator table (program/operators/table.py) says about one elementwise operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onnxopt.program.dtypes import DTYPES, from_ir, to_ir
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.operators.result_dtypes import Attributes, ResultDtype, same
from onnxopt.program.pointwise import Program

_VARIADIC_SAMPLE = 3  # operands that an operator for any number of operands is tried with


@dataclasses.dataclass(frozen=True)
class Call:
    """One use of an operator: its operands, attributes, and the storage dtypes of the first operand and the result."""

    args: tuple[Expr, ...]
    attributes: Attributes
    operand: str
    result: str

    def attr(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)


@dataclasses.dataclass(frozen=True)
class Operand:
    """How one operand differs from the other operands of its operator.

    dtypes: the storage dtypes that it may have, None: those of the row. optional: a node may leave it out.
    scalar: the operator's definition wants a tensor of rank 0. along_axis: or one of rank 1, with an element for each
    position on the axis that the attribute `axis` names.
    """

    dtypes: frozenset[str] | None = None
    optional: bool = False
    scalar: bool = False
    along_axis: bool = False


_USUAL = Operand()


@dataclasses.dataclass(frozen=True)
class Operator:
    """One row of the table.

    name, domain, since: ONNX op type, its domain, and the first version the row holds for. Later versions only add
        dtypes.
    arity: least and most operands; most is None where there is no limit.
    dtypes: storage dtypes that the operands may have.
    meaning: the result in terms of the operands, in their compute dtype.
    result: the dtype of the result.
    operands: by position, the operands that differ from the others.
    dtypes_with: those of `dtypes` for which an operator with these attributes is defined; None: all of them.
    exact: the result jumps somewhere (a comparison, a rounding). Operands are rounded to their storage dtype first, as
        the unfused operator would see them.
    samples: where tests draw inputs, (low, high). attributes: attribute sets that tests try.
    ulp: how far the result may be from the reference in tests, in ulp of the storage dtype.
    reference: the operator in numpy, called with float64 or integer operands and the attributes. Needed where onnx's
        reference evaluator does not have the operator, which is so in every domain but ONNX's own.
    """

    name: str
    since: int
    arity: tuple[int, int | None]
    dtypes: frozenset[str]
    meaning: Callable[[Call], Expr]
    domain: str = ""
    result: ResultDtype = same
    operands: Mapping[int, Operand] = dataclasses.field(default_factory=dict)
    dtypes_with: Callable[[Attributes], frozenset[str]] | None = None
    exact: bool = False
    samples: tuple[float, float] = (-4.0, 4.0)
    attributes: tuple[Attributes, ...] = ({},)
    ulp: int = 4
    reference: Callable[..., np.ndarray] | None = None

    def __post_init__(self) -> None:
        """A row that contradicts itself cannot be made: one dtype shows it. `verify` tries all."""
        self._verify_use(self.sample_dtypes(min(self.allowed(self.attributes[0]))), self.attributes[0])

    def operand(self, position: int) -> Operand:
        return self.operands.get(position, _USUAL)

    def allowed(self, attributes: Attributes) -> frozenset[str]:
        """The storage dtypes that usual operands may have beside these attributes."""
        return self.dtypes if self.dtypes_with is None else self.dtypes & self.dtypes_with(attributes)

    def takes(self, position: int, dtype: str, attributes: Attributes) -> bool:
        """Whether the operand at this position may have this storage dtype."""
        own = self.operand(position).dtypes
        return dtype in (self.allowed(attributes) if own is None else own)

    def sample_dtypes(self, dtype: str) -> tuple[str, ...]:
        """Storage dtypes of the operands of one use whose usual operands have `dtype`."""
        high = self.arity[1] or _VARIADIC_SAMPLE
        own = [self.operand(position).dtypes for position in range(high)]
        return tuple(dtype if dtypes is None or dtype in dtypes else min(dtypes) for dtypes in own)

    def verify(self) -> None:
        """Raise ValueError where the meaning contradicts the dtypes, or where tests have no reference."""
        if self.domain and self.reference is None:
            raise ValueError(f"{self.name}: a row of {self.domain} needs a reference")
        for attributes in self.attributes:
            for dtype in sorted(self.allowed(attributes)):
                self._verify_use(self.sample_dtypes(dtype), attributes)

    def _verify_use(self, operands: tuple[str, ...], attributes: Attributes) -> None:
        use = f"{self.name}({', '.join(operands)})"
        result = from_ir(self.result([to_ir(d) for d in operands], attributes))
        if result is None:
            raise ValueError(f"{use}: the row does not say which dtype the result has")
        builder = Builder(operands)
        value = self.meaning(Call(builder.inputs, attributes, operands[0], result.name))
        if value.dtype != DTYPES[result.name].compute:
            raise ValueError(f"{use}: the result is {result.name}, but its meaning computes {value.dtype}")
        depends = tuple(range(len(operands)))
        try:
            Program(operands, (result.name,), tuple(builder.code), (value.id,), (depends,), (0,)).verify()
        except ValueError as error:
            raise ValueError(f"{use}: {error}") from None
