"""Rewrite rules that bring equal views, parts and copies to one form, and change no bit of any result.

View(View(x)) -> x or Reshape(x)                                             Reshape, Flatten, Squeeze, Unsqueeze
Unsqueeze(Reduce(x, axes; keepdims=0), axes) -> Reduce(x, axes; keepdims=1)
Reduce(x, axes) -> x or Squeeze(x, axes)                                      over dims of 1
Gather(x, [k, k + 1, ..]) -> Slice(x, k, ..)                                 where x has these positions
Slice(x, -k, ..) -> Slice(x, N - k, ..)                                      where x has N positions
Tile(x, repeats) | Concat(x, x, ..) -> Expand(x)                             along dims of 1
Expand(x, computed shape) -> Expand(x, constant)                             where it repeats dims of 1 alone
Reshape(Transpose(Unsqueeze(x))) -> Reshape(Transpose(x))
View(Softmax(View(x), -1)) -> Softmax(x, -1)                                 also LogSoftmax, Hardmax; rows are the same
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRule, RewriteRuleClassBase

from onnxopt.graph.shapes.checked_sizes import is_check
from onnxopt.graph.shapes.value_dims import reshape_to, same

_MAX_POSITIONS = 1 << 16  # of a Gather that are compared
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2")
_OF_ONE = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "GlobalAveragePool", "GlobalMaxPool")
_SOFTMAXES = ("Softmax", "LogSoftmax", "Hardmax")
_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of a value that no run changes."""
    return None if value is None or value.is_graph_input() else value.const_value


class NeighbouringPositions(RewriteRuleClassBase):
    """`Gather(x, positions) -> Slice(x)` for constant positions that count up, and that x is known to have."""

    def pattern(self, op, x, positions):  # type: ignore[no-untyped-def]
        return op.Gather(x, positions, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, positions: ir.Value, y: ir.Value) -> MatchResult:
        count = _counted(x, positions, y)
        return MatchResult().fail(count) if isinstance(count, str) else MatchResult()

    def rewrite(self, op, x: ir.Value, positions: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        count = _counted(x, positions, y)
        assert not isinstance(count, str)
        return op.Slice(x, *(op.Constant(value=ir.tensor([bound], dtype=ir.DataType.INT64)) for bound in count))


def _counted(x: ir.Value, positions: ir.Value, y: ir.Value) -> tuple[int, int, int] | str:
    """First position, the one behind the last, and the axis; or why positions are no range of x."""
    node, tensor = y.producer(), constant_of(positions)
    if node is None or tensor is None or len(tensor.shape) != 1 or not 0 < tensor.size <= _MAX_POSITIONS:
        return f"the positions `{positions.name}` are no constant vector"
    axis = node.attributes.get_int("axis", 0)
    size = None if x.shape is None or not -len(x.shape) <= axis < len(x.shape) else x.shape[axis]
    if not isinstance(size, int):
        return f"the number of positions of `{x.name}` is not known"
    numbers = tensor.numpy().astype(np.int64)
    first = int(numbers[0]) + (size if numbers[0] < 0 else 0)
    if not np.array_equal(numbers % size if size else numbers, np.arange(first, first + tensor.size)):
        return f"the positions `{positions.name}` do not count up, or `{x.name}` has fewer"
    return first, first + tensor.size, axis


class NegativeBounds(RewriteRuleClassBase):
    """Constant bounds of a Slice that are counted from the end of known dims, counted from their front."""

    def pattern(self, op, x, starts, ends, axes):  # type: ignore[no-untyped-def]
        return op.Slice(x, starts, ends, axes, _allow_other_inputs=True, _outputs=["y"])

    def check(  # type: ignore[override]
        self, context: MatchContext, x: ir.Value, y: ir.Value, **_: ir.Value
    ) -> MatchResult:
        bounds = _from_the_front(x, y)
        return MatchResult().fail(bounds) if isinstance(bounds, str) else MatchResult()

    def rewrite(self, op, x: ir.Value, axes: ir.Value, y: ir.Value, **_: ir.Value):  # type: ignore[no-untyped-def]
        bounds = _from_the_front(x, y)
        assert not isinstance(bounds, str)
        return op.Slice(x, *(op.Constant(value=ir.tensor(b, dtype=ir.DataType.INT64)) for b in bounds), axes)


def _from_the_front(x: ir.Value, y: ir.Value) -> tuple[list[int], list[int]] | str:
    """Starts and ends without negative numbers, or why the Slice stays."""
    node = y.producer()
    assert node is not None
    tensors = [constant_of(value) for value in node.inputs[1:5]]
    if x.shape is None or any(tensor is None for tensor in tensors):
        return "the bounds, or the dims, are not known"
    starts, ends, axes, *steps = ([int(n) for n in t.numpy().ravel()] for t in tensors)  # type: ignore[union-attr]
    if steps and any(step != 1 for step in steps[0]):
        return "Slice has a step other than 1"
    if min((*starts, *ends), default=0) >= 0:
        return "no bound is negative"
    sizes = [x.shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        return "a dim that is sliced is not known"
    bounds = [
        [max(bound + int(str(size)), 0) if bound < 0 else bound for bound, size in zip(numbers, sizes, strict=True)]
        for numbers in (starts, ends)
    ]
    return bounds[0], bounds[1]


class TiledOnes(RewriteRuleClassBase):
    """`Tile(x, repeats) -> Expand(x)`, and Concat of x with itself, along dims of 1."""

    def __init__(self, op_type: str) -> None:
        super().__init__(f"Ones{op_type}")
        self._op_type = op_type

    def pattern(self, op, x):  # type: ignore[no-untyped-def]
        return getattr(op, self._op_type)(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, y: ir.Value) -> MatchResult:
        return (
            MatchResult() if _repeats(x, y) else MatchResult().fail("more is repeated than dims of 1, or unknown dims")
        )

    def rewrite(self, op, x: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        return op.Expand(x, op.Constant(value=ir.tensor(_repeats(x, y), dtype=ir.DataType.INT64)))


def _repeats(x: ir.Value, y: ir.Value) -> list[int]:
    """How often each dim of x is repeated, where these are dims of 1; empty for other Tiles and Concats."""
    node = y.producer()
    if node is None or x.shape is None:
        return []
    if node.op_type == "Tile":
        tensor = constant_of(node.inputs[1])
        repeats = [] if tensor is None else [int(count) for count in tensor.numpy()]
    else:
        count, axis = len(node.inputs), node.attributes.get_int("axis", 0)
        if count < 2 or any(value is not x for value in node.inputs):
            return []
        repeats = [count if k == axis % len(x.shape) else 1 for k in range(len(x.shape))]
    fit = len(repeats) == len(x.shape) and all(
        r == 1 or (r > 1 and dim == 1) for r, dim in zip(repeats, x.shape, strict=True)
    )
    return repeats if fit else []


class StatedRepeats(RewriteRuleClassBase):
    """`Expand(x, computed shape) -> Expand(x, constant)`, where all dims but repeated ones of 1 are those of x."""

    def pattern(self, op, x):  # type: ignore[no-untyped-def]
        return op.Expand(x, _allow_other_inputs=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, y: ir.Value) -> MatchResult:
        node = y.producer()
        if node is None or constant_of(node.inputs[1]) is not None:
            return MatchResult().fail("the shape is a constant")
        return MatchResult() if _stated(x, y) else MatchResult().fail("dims are not known to be those of x")

    def rewrite(self, op, x: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        return op.Expand(x, op.Constant(value=ir.tensor(_stated(x, y), dtype=ir.DataType.INT64)))


def _stated(x: ir.Value, y: ir.Value) -> list[int]:
    """The size of each dim that an Expand repeats, and 1 for others; empty where one is not known."""
    if x.shape is None or y.shape is None or len(x.shape) > len(y.shape):
        return []
    sizes = []
    for before, after in zip([1] * (len(y.shape) - len(x.shape)) + list(x.shape), y.shape, strict=True):
        if not same(before, after) and not (before == 1 and isinstance(after, int)):
            return []
        sizes.append(1 if same(before, after) else int(after))  # type: ignore[arg-type]
    return sizes


class KeptDims(RewriteRuleClassBase):
    """`Unsqueeze(Reduce(x, axes; keepdims=0), axes) -> Reduce(x, axes; keepdims=1)`."""

    def __init__(self, op_type: str) -> None:
        super().__init__(f"KeptDims{op_type}")
        self._op_type = op_type

    def pattern(self, op, x, axes, again):  # type: ignore[no-untyped-def]
        reduced = getattr(op, self._op_type)(x, axes, keepdims=0, _allow_other_attributes=True, _outputs=["reduced"])
        return op.Unsqueeze(reduced, again)

    def check(
        self, context: MatchContext, x: ir.Value, axes: ir.Value, again: ir.Value, reduced: ir.Value
    ) -> MatchResult:
        result, tensors = MatchResult(), [constant_of(axes), constant_of(again)]
        if x.shape is None or any(tensor is None for tensor in tensors):
            return result.fail("the rank, or the axes, are not known")
        one, other = ({int(a) % len(x.shape) for a in t.numpy().ravel()} for t in tensors)  # type: ignore[union-attr]
        if one != other or not one:
            return result.fail(f"Unsqueeze adds other dims than {self._op_type} removes")
        return result

    def rewrite(self, op, x: ir.Value, axes: ir.Value, again: ir.Value, reduced: ir.Value):  # type: ignore[no-untyped-def]
        node = reduced.producer()
        assert node is not None
        attributes = {name: a.value for name, a in node.attributes.items()} | {"keepdims": 1}
        return getattr(op, self._op_type)(x, axes, **attributes)


class ReducedOnes(RewriteRuleClassBase):
    """`Reduce(x, axes) -> x` over dims of 1, and Squeeze where these go."""

    def __init__(self, op_type: str) -> None:
        super().__init__(f"ReducedOnes{op_type}")
        self._op_type = op_type

    def pattern(self, op, x):  # type: ignore[no-untyped-def]
        return getattr(op, self._op_type)(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, y: ir.Value) -> MatchResult:
        axes = _reduced(x, y)
        if axes is None or x.shape is None:
            return MatchResult().fail("the rank, or the axes, are not known")
        return MatchResult() if all(x.shape[a] == 1 for a in axes) else MatchResult().fail("a reduced dim may not be 1")

    def rewrite(self, op, x: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        node, axes = y.producer(), _reduced(x, y)
        if node is None or not axes or node.attributes.get_int("keepdims", 1) == 1:
            return op.Identity(x)
        return op.Squeeze(x, op.Constant(value=ir.tensor(axes, dtype=ir.DataType.INT64)))


def _reduced(x: ir.Value, y: ir.Value) -> list[int] | None:
    """The axes that a reduction or a global pool goes over, None where they are not known."""
    node = y.producer()
    if node is None or x.shape is None:
        return None
    if node.op_type.startswith("Global"):
        return list(range(2, len(x.shape)))
    stated = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = constant_of(stated)
    if stated is not None and tensor is None:
        return None
    axes = node.attributes.get_ints("axes", ()) if tensor is None else tensor.numpy().ravel()
    if not len(axes):
        return [] if node.attributes.get_int("noop_with_empty_axes", 0) == 1 else list(range(len(x.shape)))
    return sorted(int(axis) % len(x.shape) for axis in axes)


class ViewOfView(RewriteRuleClassBase):
    """Two views in a row are x, where the result has x's shape; else Reshape, unless the second one is Unsqueeze."""

    def __init__(self, outer: str, inner: str) -> None:
        super().__init__(f"{outer}Of{inner}")
        self._outer, self._inner = outer, inner

    def pattern(self, op, x):  # type: ignore[no-untyped-def]
        view = getattr(op, self._inner)(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["view"])
        return getattr(op, self._outer)(view, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, view: ir.Value, y: ir.Value) -> MatchResult:
        result = MatchResult()
        if x.shape is None or y.shape is None:
            return result.fail("the shapes of the two views are not known")
        if is_check(view.producer()) or is_check(y.producer()):
            return result.fail("one of the two views checks the sizes of an input")
        if self._inner == "Squeeze" and (view.shape is None or _ones(x.shape) < len(x.shape) - len(view.shape)):
            return result.fail("Squeeze checks that a dim is 1")
        if _is_same_shape(x.shape, y.shape):
            return result
        outer = y.producer()
        merged = self._inner == "Reshape" and outer is not None and constant_of(outer.inputs[-1]) is not None
        if self._outer == "Unsqueeze" or (self._outer == "Reshape" and merged):  # the latter is MergedReshapes' own
            return result.fail("the result has another shape than x")
        reason = reshape_to(x, y.shape)
        return result.fail(reason) if isinstance(reason, str) else result

    def rewrite(self, op, x: ir.Value, y: ir.Value, **_: ir.Value):  # type: ignore[no-untyped-def]
        assert x.shape is not None and y.shape is not None
        if _is_same_shape(x.shape, y.shape):
            return op.Identity(x)
        return op.Reshape(x, op.Constant(value=ir.tensor(reshape_to(x, y.shape), dtype=ir.DataType.INT64)))


class TransposeOfUnsqueeze(RewriteRuleClassBase):
    """`Reshape(Transpose(Unsqueeze(x))) -> Reshape(Transpose(x))`: dims of 1 may be anywhere."""

    def pattern(self, op, x, axes):  # type: ignore[no-untyped-def]
        turned = op.Transpose(op.Unsqueeze(x, axes), _allow_other_attributes=True, _outputs=["turned"])
        return op.Reshape(turned, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(  # type: ignore[override]
        self, context: MatchContext, x: ir.Value, axes: ir.Value, turned: ir.Value, y: ir.Value
    ) -> MatchResult:
        plan = _without_ones(x, axes, turned, y)
        return MatchResult().fail(plan) if isinstance(plan, str) else MatchResult()

    def rewrite(self, op, x: ir.Value, axes: ir.Value, turned: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        plan = _without_ones(x, axes, turned, y)
        assert not isinstance(plan, str)
        perm, dims = plan
        return op.Reshape(op.Transpose(x, perm=perm), op.Constant(value=ir.tensor(dims, dtype=ir.DataType.INT64)))


def _without_ones(x: ir.Value, axes: ir.Value, turned: ir.Value, y: ir.Value) -> tuple[list[int], list[int]] | str:
    """The permutation of x, and the constant of the Reshape after it; or why there is none."""
    node, added = turned.producer(), constant_of(axes)
    perm = () if node is None else node.attributes.get_ints("perm", ())
    if x.shape is None or y.shape is None or added is None or len(perm) != len(x.shape) + added.size:
        return "the shapes of the two views, or the axes, are not known"
    if is_check(y.producer()):
        return "Reshape checks the sizes of an input"
    ones = {int(axis) % len(perm) for axis in added.numpy().ravel()}
    rest = [axis for axis in range(len(perm)) if axis not in ones]
    order = [rest.index(axis) for axis in perm if axis not in ones]
    dims = reshape_to(ir.Value(name=turned.name, shape=ir.Shape([x.shape[axis] for axis in order])), y.shape)
    return dims if isinstance(dims, str) else (order, dims)


class SoftmaxOfView(RewriteRuleClassBase):
    """`View(Softmax(View(x))) -> Softmax(x)` along x's last dim, as converters write Softmax of opset 12."""

    def __init__(self, op_type: str, outer: str, inner: str) -> None:
        super().__init__(f"{outer}Of{op_type}Of{inner}")
        self._op_type, self._outer, self._inner = op_type, outer, inner

    def pattern(self, op, x):  # type: ignore[no-untyped-def]
        view = getattr(op, self._inner)(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["view"])
        weights = getattr(op, self._op_type)(view, _allow_other_attributes=True, _outputs=["weights"])
        return getattr(op, self._outer)(weights, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, view: ir.Value, weights: ir.Value, y: ir.Value) -> MatchResult:
        result, node = MatchResult(), weights.producer()
        if not x.shape or not view.shape or node is None:
            return result.fail("the shapes of the two views are not known")
        if is_check(view.producer()) or is_check(y.producer()):
            return result.fail("one of the two views checks the sizes of an input")
        if node.attributes.get_int("axis", -1) not in (-1, len(view.shape) - 1):
            return result.fail(f"{self._op_type} is not along the last dim")
        unchanged = _is_shape_of(y, x) or (y.shape is not None and _is_same_shape(x.shape, y.shape))
        if not same(x.shape[-1], view.shape[-1]) or not unchanged:
            return result.fail("the rows or the result have other dims than x")
        return result

    def rewrite(self, op, x: ir.Value, **_: ir.Value):  # type: ignore[no-untyped-def]
        return getattr(op, self._op_type)(x, axis=-1)


def _is_shape_of(y: ir.Value, x: ir.Value) -> bool:
    """Whether a Reshape gives its result the shape that Shape reads off x."""
    view = y.producer()
    target = None if view is None or len(view.inputs) < 2 or view.inputs[1] is None else view.inputs[1].producer()
    return (
        target is not None
        and (target.domain, target.op_type) == ("", "Shape")
        and target.inputs[0] is x
        and not target.attributes
    )


def _ones(shape: ir.Shape) -> int:
    return sum(isinstance(dim, int) and dim == 1 for dim in shape)


def _is_same_shape(one: Iterable[int | ir.SymbolicDim], other: Iterable[int | ir.SymbolicDim]) -> bool:
    one, other = tuple(one), tuple(other)
    return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))


# Each rule with the operator that computes its pattern's result, as those of no_op_rules.py.
RULES: tuple[tuple[str, Callable[[], RewriteRule]], ...] = (
    ("Gather", NeighbouringPositions.rule),
    ("Slice", NegativeBounds.rule),
    ("Tile", lambda: TiledOnes.rule("Tile")),
    ("Concat", lambda: TiledOnes.rule("Concat")),
    ("Expand", StatedRepeats.rule),
    *(("Unsqueeze", lambda op_type=op_type: KeptDims.rule(op_type)) for op_type in _REDUCTIONS),
    *((op_type, lambda op_type=op_type: ReducedOnes.rule(op_type)) for op_type in _OF_ONE),
    *((o, lambda o=o, i=i: ViewOfView.rule(o, i)) for o in _VIEWS for i in _VIEWS),
    ("Reshape", TransposeOfUnsqueeze.rule),
    *(
        ("Reshape", lambda op_type=op_type, i=i: SoftmaxOfView.rule(op_type, "Reshape", i))
        for op_type in _SOFTMAXES
        for i in ("Reshape", "Flatten")
    ),
)
