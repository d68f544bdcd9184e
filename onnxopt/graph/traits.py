"""What verification needs to know of a model, read from its graph: interface, uses of inputs, precision, randomness."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from onnxopt.graph import fixed_dims, input_uses, nan_hazards, ort_traps, signature
from onnxopt.graph.input_uses import Use
from onnxopt.graph.shapes.checked_sizes import checked_sizes
from onnxopt.graph.signature import Tensor, tensor_text

RANDOM_OPS = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_QUANTIZING_OPS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
_COARSEST_FIRST = ("quantized", "bfloat16", "float16", "float32", "float64")
_INDEPENDENT_OF_VALUES = frozenset({"ConstantOfShape", "Shape", "Size"})  # elements that depend on a shape alone


NARROW = ("float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Traits:
    """What is known of a model before it is run.

    inputs, outputs: the interface. uses: what consumers take the elements of an input for, by its name; inputs that
    may hold any elements are left out (graph/input_uses.py). precision: the coarsest float dtype of any value,
    "quantized" where the model quantizes at run time; a key of the table of limits in verification/compare.py.
    float_decided: names of the outputs that depend on the value of a float tensor. input_decided: of those, the
    ones that depend on elements of an input, too. operators: types of all nodes but calls of functions, of other
    domains than ONNX's as "domain::type". random: whether a node draws random numbers. traps: whether running it in
    ONNX Runtime can end the process, and trapping_optimizers: those of ONNX Runtime that can do so when a session
    opens on the CPU (graph/ort_traps.py). lowered: whether `precision` is that of a model of lower precision that
    is compared with this one. checked: sizes of symbols of inputs that the graph checks. nan_hazards: inputs in
    which NaN and infinity are not tried, and why. never_empty: sets of symbols that the user's model refuses where all
    are 0, though a form of it may take them.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    uses: dict[str, tuple[Use, ...]]
    precision: str
    float_decided: frozenset[str]
    random: bool
    input_decided: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()
    traps: bool = False
    trapping_optimizers: tuple[str, ...] = ()
    lowered: bool = False
    checked: Mapping[str, int] = dataclasses.field(default_factory=dict)
    nan_hazards: Mapping[str, str] = dataclasses.field(default_factory=dict)
    never_empty: frozenset[frozenset[str]] = frozenset()

    @property
    def is_narrow(self) -> bool:
        """Whether the model computes in 16-bit floats."""
        return self.precision in NARROW


def of(model: ir.Model) -> Traits:
    """The traits of a model, which stays as it is. Functions are looked into."""
    nodes = list(_nodes(model))
    float_decided = frozenset(v.name or "" for v in model.graph.outputs if _depends_on_a_float(v))
    inputs = {v for v in model.graph.inputs if v.name not in model.graph.initializers}
    return Traits(
        inputs=signature.inputs_of(model),
        outputs=signature.outputs_of(model),
        uses=input_uses.uses_of_inputs(model),
        precision=_precision(model, nodes),
        float_decided=float_decided,
        input_decided=frozenset(
            v.name or "" for v in model.graph.outputs if v.name in float_decided and _depends_on(v, inputs)
        ),
        operators=frozenset(
            f"{n.domain}::{n.op_type}" if n.domain else n.op_type
            for n in nodes
            if n.op_identifier() not in model.functions
        ),
        random=any(n.op_type in RANDOM_OPS and not _is_inert_dropout(n) for n in nodes),
        traps=ort_traps.can_end_the_process(model),
        trapping_optimizers=ort_traps.trapping_optimizers(model),
        checked=checked_sizes(model.graph),
        nan_hazards=nan_hazards.inputs_of_hazards(model),
    )


def completed(model: Traits, other: Traits) -> Traits:
    """The traits of `model`, with the uses, the sizes and the operators that `other`, an equivalent model, has besides.

    The dims of a table may be unknown in one of the models and be inferred in the other, which may also have a size
    where `model` has a dynamic dim.
    """
    return dataclasses.replace(
        model,
        uses=input_uses.merged(model.uses, other.uses),
        checked={**other.checked, **fixed_dims.fixed_between(model.inputs, other.inputs), **model.checked},
        operators=model.operators | other.operators,
    )


def as_lowered(model: Traits, precision: str) -> Traits:
    """The traits of a float32 model that one of lower precision is compared with."""
    return dataclasses.replace(model, precision=precision, lowered=True)


def interface_difference(original: Traits, optimized: Traits) -> str:
    """The first difference between the interfaces of two models (name, dtype, dims, order), "" where there is none."""
    for kind, before, after in (
        ("input", original.inputs, optimized.inputs),
        ("output", original.outputs, optimized.outputs),
    ):
        if len(before) != len(after):
            return f"{len(before)} {kind}s became {len(after)}"
        for a, b in zip(before, after, strict=True):
            if a != b:
                return f"{kind} {tensor_text(a)} became {tensor_text(b)}"
    return ""


def difference_of_names_and_dtypes(a: Traits, b: Traits) -> str:
    """How the interfaces differ, "" where they do not. Dims may differ: two tools may declare them differently."""
    for kind, left, right in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs)):
        one, other = ({t.name: t.dtype for t in tensors} for tensors in (left, right))
        if one != other:
            return f"{kind} are {one} and {other}"
    return ""


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _precision(model: ir.Model, nodes: list[ir.Node]) -> str:
    dtypes = {v.dtype for graph in model.graphs() for v in graph.initializers.values()}
    dtypes |= {v.dtype for v in (*model.graph.inputs, *model.graph.outputs)}
    for node in nodes:
        if node.op_type in _QUANTIZING_OPS:
            return "quantized"
        if node.op_type == "Cast" and "to" in node.attributes and not node.attributes["to"].is_ref():
            dtypes.add(ir.DataType(node.attributes["to"].as_int()))
        if node.op_type == "Constant" and "value" in node.attributes and not node.attributes["value"].is_ref():
            dtypes.add(node.attributes["value"].as_tensor().dtype)
        dtypes |= {v.dtype for v in node.outputs}
    names = {signature.dtype_name(d) for d in dtypes if d is not None}
    if any(n.startswith(("float8", "float4")) for n in names):
        return "quantized"
    return next((d for d in _COARSEST_FIRST if d in names), "float32")


def _depends_on(output: ir.Value, inputs: Collection[ir.Value]) -> bool:
    """Whether elements of an output depend on elements of one of these inputs. A body may read any value around it."""
    return any(value in inputs or _has_body(value.producer()) for value in _sources(output))


def _depends_on_a_float(output: ir.Value) -> bool:
    for value in _sources(output):
        if value.dtype is not None and value.dtype.is_floating_point():
            return True
        node = value.producer()
        if node is None or node.op_type in _INDEPENDENT_OF_VALUES:
            continue
        if _has_body(node):
            return True  # a body may read any value of the graph around it; one of these is assumed to be a float
        constant = node.attributes.get("value") if node.op_type == "Constant" else None
        if constant is not None and constant.as_tensor().dtype.is_floating_point():
            return True
    return False


def _has_body(node: ir.Node | None) -> bool:
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return node is not None and any(a.type in kinds for a in node.attributes.values())


def _sources(output: ir.Value) -> Iterator[ir.Value]:
    """The output, and all values of its graph on whose elements its own depend."""
    seen, pending = {output}, [output]
    while pending:
        value = pending.pop()
        yield value
        node = value.producer()
        if node is None or node.op_type in _INDEPENDENT_OF_VALUES:
            continue
        unseen = [v for v in node.inputs if v is not None and v not in seen]
        seen.update(unseen)
        pending.extend(unseen)


def _is_inert_dropout(node: ir.Node) -> bool:
    """Whether a node is a Dropout without its optional third input, training_mode: it draws no numbers then."""
    return node.op_type == "Dropout" and (len(node.inputs) < 3 or node.inputs[2] is None)
