"""Infers dtypes and shapes inside a model from its inputs and constants."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import sympy

from onnxopt.graph.shapes import contents
from onnxopt.graph.shapes.checked_sizes import checked_sizes
from onnxopt.graph.shapes.contents import Contents
from onnxopt.graph.shapes.counted_windows import fits
from onnxopt.graph.shapes.dims import (
    NAMELESS,
    Dim,
    Dims,
    Unknowns,
    dim_text,
    parse_dim,
    product,
    sign,
    simplest,
    symbols_of,
)  # fmt: skip
from onnxopt.graph.shapes.multiples import as_multiple, multiples_of
from onnxopt.graph.shapes.result_dtypes import result_dtype_of
from onnxopt.graph.shapes.rules import rule_of
from onnxopt.graph.shapes.schema_inference import SchemaInference, ir_type, tensor, tensor_type
from onnxopt.graph.shapes.window_rules import WINDOWED

_READ = 1024  # bytes; constants up to this size (axes, pads, scales) are passed on to onnx's rules
_STEPS = 8  # rounds in which assumptions of a loop's states settle; each dim and each rank changes once at most
_RULES_FROM = 13  # opset; axes and shapes are inputs from there on


class InferShapesPass(ir.passes.InPlacePass):
    """Symbolic shape inference: dims become numbers, or expressions over the inputs' symbolic dims ("12*batch").

    Equal dims get equal expressions wherever the rules here or onnx's know it. An unknown dim gets a name that begins
    with unk__; a value of unknown rank gets no shape. Shapes that the model declares for results of nodes are not read.
    Weights are not copied. The result holds at every run of the model in which no tensor is empty.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return ir.passes.PassResult(model, infer(model).write())


def infer(model: ir.Model) -> Knowledge:
    """Dims, types and contents of every value of a model, which is not changed. Nodes must be in topological order."""
    knowledge = Knowledge(model)
    knowledge.take(model.graph)
    return knowledge


class NodeError(Exception):
    """Inference of a node failed, as its cause says: a defect here, as rules answer invalid operands by None."""

    def __init__(self, node: ir.Node) -> None:
        super().__init__(f"{node.name} ({node.op_type})")
        self.node = node


class Knowledge:
    """Dims, types and contents of the values of a model, as far as they were inferred."""

    def __init__(self, model: ir.Model) -> None:
        shapes = [value.shape for value in model.graph.inputs if value.shape is not None]
        names = [dim.value for shape in shapes for dim in shape if isinstance(dim, ir.SymbolicDim) and dim.value]
        self.unknowns = Unknowns(names)
        self._named: dict[str, Dim] = {name: parse_dim(name) for name in names}
        if sizes := {parse_dim(name): size for name, size in checked_sizes(model.graph).items()}:
            self._named = {name: simplest(sympy.sympify(dim).subs(sizes)) for name, dim in self._named.items()}
        self._multiples = multiples_of(model.graph)
        self._rules = model.opset_imports.get("", 0) >= _RULES_FROM
        self._schemas = SchemaInference(dict(model.opset_imports), model.ir_version)
        self._dims: dict[ir.Value, Dims | None] = {}
        self._types: dict[ir.Value, ir.TypeProtocol | None] = {}
        self._contents: dict[ir.Value, Contents] = {}
        self._alike: dict[tuple[str, int, int], Dim] = {}
        self._windowed: set[Dim] = set()  # sizes of convolved and pooled tensors
        self._stepping: set[Dim] = set()  # sizes that are others in each step of a loop
        self._symbols: dict[object, int] = {}  # every symbol of a dim -> how many symbols came before it
        for value in model.graph.inputs:
            self._note(value, None if value.shape is None else tuple(map(self._declared, value.shape)), value.type)

    def dims(self, value: ir.Value | None) -> Dims | None:
        """The dims of a value, None where not even its rank is known."""
        if value is None:
            return None
        if value not in self._dims:
            self._note(value, self._dims_of_new(value), value.type)
        return self._dims[value]

    def _dims_of_new(self, value: ir.Value) -> Dims | None:
        """The dims of a constant, and of a value that joined the graph after it was inferred: as its shape says."""
        if value.const_value is not None:
            return tuple(int(k) for k in value.const_value.shape.numpy())
        return None if value.shape is None else tuple(map(self._declared, value.shape))

    def named(self, name: str) -> Dim:
        """The dim whose text is `name`."""
        return self._named.get(name) or parse_dim(name)

    def is_size(self, dim: Dim) -> bool:
        """Whether a number is 1 or more where no tensor is empty: a product of sizes, some of windows that fit."""
        if isinstance(dim, int):
            return dim > 0
        known = dim in self._windowed or sign(dim) == 1 or fits(dim, self._windowed)
        return known or bool(dim.is_Mul and all(map(self.is_size, map(simplest, dim.args))))

    def all_dims(self) -> set[Dim]:
        """Every dim of every value."""
        return {dim for dims in self._dims.values() for dim in dims or ()}

    def type(self, value: ir.Value) -> ir.TypeProtocol | None:
        return self._types.get(value, value.type)

    def contents(self, value: ir.Value | None) -> Contents | None:
        """Contents of a small integer tensor, None where they are not known."""
        if value is None or contents.is_float(self.dtype(value)):
            return None
        return self._held(value)

    def _held(self, value: ir.Value | None) -> Contents | None:
        """The same, of floats that stand for sizes too."""
        if value is None or value in self._contents:
            return None if value is None else self._contents[value]
        if value.const_value is None or value.is_graph_input():
            return None
        held = contents.tensor_contents(value.const_value)
        if held is not None:
            self._contents[value] = held
        return held

    def correct(self, value: ir.Value, dims: Dims) -> None:
        """Set the dims of a value that changed with the graph, here and on the value itself."""
        self._note(value, dims, self.type(value))
        value.shape = ir.Shape([dim_text(dim) for dim in dims])

    def write(self) -> bool:
        """Write the shapes to the values of the model, and types where values have none; whether anything changed."""
        modified = False
        for value, dims in self._dims.items():
            if value.producer() is None:
                continue
            shape, kind = None if dims is None else ir.Shape([dim_text(dim) for dim in dims]), self.type(value)
            if shape is not None and shape != value.shape:
                value.shape = shape
                modified = True
            if value.type is None and kind is not None:
                value.type = kind
                modified = True
        return modified

    def take(self, graph: ir.Graph) -> None:
        """Infer the results of a graph's nodes, and of the graphs inside them."""
        for node in graph:
            try:
                self._take_node(node)
            except NodeError:  # of a node in a body of this one
                raise
            except Exception as error:
                raise NodeError(node) from error

    def _take_node(self, node: ir.Node) -> None:
        graphs = [a for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH and not a.is_ref()]
        bodies = [a.as_graph() for a in graphs]
        if bodies:
            self._control_flow(node, bodies)
        elif node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            self._constant(node)
        else:
            self._node(node)

    def _note(self, value: ir.Value, dims: Dims | None, kind: ir.TypeProtocol | None) -> None:
        dims = None if dims is None else tuple(self._without_bound(as_multiple(dim, self._multiples)) for dim in dims)
        self._dims[value], self._types[value] = dims, kind
        for dim in dims or ():
            if not isinstance(dim, int):
                self._named[str(dim_text(dim))] = dim
                for symbol in symbols_of(dim):
                    self._symbols.setdefault(symbol, len(self._symbols))

    def _without_bound(self, dim: Dim) -> Dim:
        """x in place of Max(0, x) where x is a size."""
        rest = [arg for arg in dim.args if arg != 0] if isinstance(dim, sympy.Max) else []
        return rest[0] if len(rest) == 1 and self.is_size(rest[0]) else dim

    def _declared(self, dim: int | ir.SymbolicDim) -> Dim:
        if isinstance(dim, int):
            return dim if dim >= 0 else self.unknowns.dim()
        if dim.value is None or dim.value in NAMELESS:
            return self.unknowns.dim()
        return self._named.setdefault(dim.value, parse_dim(dim.value))

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        kind = self.type(value)
        if kind is None and value.const_value is not None:
            return value.const_value.dtype
        return kind.dtype if isinstance(kind, ir.TensorType) else None

    def _node(self, node: ir.Node) -> None:
        rule = rule_of(node) if self._rules else None
        dims = None
        if rule is not None:
            try:
                dims = rule(node, self)
            except (IndexError, ValueError, TypeError, KeyError, ZeroDivisionError):
                dims = None  # invalid operands, which a runtime reports
        dtype = self._dtype_by_rule(node)
        if dims is None or dtype is None:
            self._by_schema(node, dims, dtype)
        else:
            self._note(node.outputs[0], dims, node.outputs[0].type or ir.TensorType(dtype))
            for value in node.outputs[1:]:
                self._note(value, None, value.type)
        if node.op_type in WINDOWED and node.domain == "":
            self._windowed.update(self.dims(node.outputs[0]) or ())
        self._hold(node)

    def _dtype_by_rule(self, node: ir.Node) -> ir.DataType | None:
        rule = result_dtype_of(node)
        if rule is None:
            return None
        operands = [None if v is None else self.dtype(v) for v in node.inputs]
        return rule(operands, {name: attribute.value for name, attribute in node.attributes.items()})

    def _by_schema(self, node: ir.Node, dims: Dims | None, dtype: ir.DataType | None = None) -> None:
        """Note what onnx knows of the outputs. dims, dtype: of the first one, as far as rules know them."""
        types = [None if v is None else self._type_proto(v) for v in node.inputs]
        held = [None if v is None else self._tensor(v) for v in node.inputs]
        outputs = self._schemas.outputs(node, types, held)
        for k, (value, inferred) in enumerate(zip(node.outputs, outputs, strict=True)):
            if inferred is None:
                by_rule = ir.TensorType(dtype) if k == 0 and dtype is not None else None
                self._note(value, dims if k == 0 else None, value.type or by_rule)
                continue
            kind, shared = inferred
            by_schema = self._from_proto(kind, shared, k)
            self._note(value, dims if k == 0 and dims is not None else by_schema, value.type or ir_type(kind))

    def _type_proto(self, value: ir.Value) -> onnx.TypeProto:
        dims, kind = self.dims(value), self.type(value)
        if kind is not None and not isinstance(kind, ir.TensorType):
            return ir.serde.serialize_type(kind)
        return tensor_type(self.dtype(value), dims)

    def _tensor(self, value: ir.Value) -> onnx.TensorProto | None:
        held, constant = self.contents(value), value.const_value
        if constant is not None and not value.is_graph_input():
            return ir.serde.serialize_tensor(constant) if constant.nbytes <= _READ else None
        return None if held is None else tensor(held, self.dtype(value))

    def _from_proto(self, kind: onnx.TypeProto, shared: str, output: int) -> Dims | None:
        if kind.WhichOneof("value") != "tensor_type" or not kind.tensor_type.HasField("shape"):
            return None
        dims: list[Dim] = []
        for axis, dim in enumerate(kind.tensor_type.shape.dim):
            if dim.WhichOneof("value") == "dim_value":
                dims.append(dim.dim_value)
            elif dim.dim_param in self._named:
                dims.append(self._named[dim.dim_param])
            elif shared:
                dims.append(self._alike.setdefault((shared, output, axis), self.unknowns.dim()))
            else:
                dims.append(self.unknowns.dim())
        return tuple(dims)

    def _hold(self, node: ir.Node) -> None:
        """Note the contents of a node's output, where it is a small tensor."""
        if node.domain not in ("", "ai.onnx"):
            return
        if node.op_type == "Split":
            for value, part in zip(node.outputs, contents.parts(node, *map(self._held, node.inputs)), strict=False):
                self._contents[value] = part
                self._note(value, part.shape, self.type(value))
        if len(node.outputs) != 1:
            return
        held = None
        if node.op_type in ("Shape", "Size"):
            dims = self.dims(node.inputs[0])
            if dims is not None and node.op_type == "Shape":
                held = contents.array(
                    dims[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(dims))]
                )
            elif dims is not None:
                held = contents.array([product(dims)], ())
        elif (dtype := self.dtype(node.outputs[0])) is not None and contents.holds_numbers(dtype):
            held = contents.evaluate(node, [self._held(v) for v in node.inputs], dtype)
        if held is not None:
            self._contents[node.outputs[0]] = held
            self._note(node.outputs[0], held.shape, self.type(node.outputs[0]))

    def _constant(self, node: ir.Node) -> None:
        attribute = node.attributes.get("value")
        if attribute is None or attribute.is_ref():
            self._by_schema(node, None)
            return
        tensor, value = attribute.as_tensor(), node.outputs[0]
        self._note(value, tuple(int(k) for k in tensor.shape.numpy()), ir.TensorType(tensor.dtype))
        held = contents.tensor_contents(tensor)
        if held is not None:
            self._contents[value] = held

    def _control_flow(self, node: ir.Node, bodies: list[ir.Graph]) -> None:
        """If, Loop, Scan and the like: a dim of a result is known where every run of the bodies gives the same one."""
        outside = len(self._symbols)
        for body in bodies:
            self._take_body(node, body)
        skipped = 1 if node.op_type == "Loop" else 0  # a Loop's body also gives the condition
        carried = len(node.inputs) - 2 if node.op_type == "Loop" else 0
        for k, value in enumerate(node.outputs):
            results: list[ir.Value | None] = []
            if node.op_type in ("If", "Loop", "Scan"):
                results += [body.outputs[k + skipped] for body in bodies if k + skipped < len(body.outputs)]
            if node.op_type == "Loop" and k < carried:
                results.append(node.inputs[k + 2])  # what comes out if the body never runs
            dims = None if node.op_type == "Scan" else self._agreed([self.dims(v) for v in results], outside)
            if dims is not None and node.op_type == "Loop" and k >= carried:
                dims = (self.unknowns.dim(), *dims)
            kinds = [self.type(v) for v in results if v is not None]
            self._note(value, dims, value.type or (kinds[0] if kinds else None))

    def _take_body(self, node: ir.Node, body: ir.Graph) -> None:
        """Infer a body with the dims of its inputs in every step.

        A state has those that it begins with where a step leaves them as they are; others have any size in each step.
        """
        assumed = self._dims_of_inputs(node, body)
        first, skipped = (2, 1) if node.op_type == "Loop" else (0, 0)
        states = len(node.inputs) - (first or node.attributes.get_int("num_scan_inputs", len(node.inputs)))
        for _ in range(_STEPS):
            held = set(self._contents)
            for value, dims in zip(body.inputs, assumed, strict=True):
                self._note(value, dims, value.type)
            self.take(body)
            after = [self.dims(v) for v in body.outputs[skipped : skipped + states]]
            in_every_step = [
                self._in_every_step(*pair) for pair in zip(assumed[first : first + states], after, strict=False)
            ]
            if in_every_step == assumed[first : first + len(in_every_step)]:
                return
            assumed[first : first + len(in_every_step)] = in_every_step
            for value in self._contents.keys() - held:
                del self._contents[value]  # they follow from what was assumed
        for value in body.inputs[first:]:
            self._note(value, None, value.type)
        self.take(body)

    def _dims_of_inputs(self, node: ir.Node, body: ir.Graph) -> list[Dims | None]:
        """The dims of a body's inputs in the first step."""
        dims: list[Dims | None] = [None] * len(body.inputs)
        if node.op_type == "Loop" and node.domain == "" and len(body.inputs) == len(node.inputs):
            return [(), (), *(self.dims(v) for v in node.inputs[2:])]
        if node.op_type == "Loop":
            return [(), (), *dims[2:]]
        if node.op_type == "Scan" and node.domain == "" and len(body.inputs) == len(node.inputs):
            count = node.attributes.get_int("num_scan_inputs", len(node.inputs))
            axes = node.attributes["scan_input_axes"].as_ints() if "scan_input_axes" in node.attributes else [0] * count
            states = len(node.inputs) - count
            dims[:states] = [self.dims(v) for v in node.inputs[:states]]
            for k, axis in enumerate(axes):
                whole = self.dims(node.inputs[states + k])
                if whole is not None and -len(whole) <= axis < len(whole):
                    axis %= len(whole)
                    dims[states + k] = whole[:axis] + whole[axis + 1 :]
        return dims

    def _in_every_step(self, before: Dims | None, after: Dims | None) -> Dims | None:
        """The dims of a state: any size where a step changes one."""
        if before is None or after is None or len(before) != len(after):
            return None
        return tuple(
            a if a == b or (a in self._stepping) else self._step_dim() for a, b in zip(before, after, strict=True)
        )

    def _step_dim(self) -> Dim:
        """A new dim, which is another in each step."""
        dim = self.unknowns.dim()
        self._stepping.add(dim)
        return dim

    def _agreed(self, shapes: list[Dims | None], outside: int) -> Dims | None:
        """Dims that all shapes have. A symbol that a body introduces may be another number each time the body runs.

        outside: the number of symbols that were known before the bodies.
        """
        if not shapes or any(s is None or len(s) != len(shapes[0] or ()) for s in shapes):
            return None
        dims: list[Dim] = []
        for row in zip(*(s for s in shapes if s is not None), strict=True):
            lasting = isinstance(row[0], int) or all(
                self._symbols.get(s, outside) < outside for s in symbols_of(row[0])
            )
            dims.append(row[0] if lasting and all(dim == row[0] for dim in row) else self.unknowns.dim())
        return tuple(dims)
