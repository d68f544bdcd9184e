"""Rules and shared properties of schemas (onnxopt/program/schema.py) as C++ expressions.

Every expression has a type, so that a rule that makes no sense in C++ is an error of the generator, which names it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from typing import Any

from onnxopt.program import fields, schema
from onnxopt.program.core import TransformField, TransformRead
from onnxopt.program.dtypes import DTYPES

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%"}
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
BASE = {"index", "vector", "unroll", "threads"}  # fields that C++ has in the struct Variant
VARIANT = {"shared", "cluster"}  # and those of them that only some kinds have
_TYPES = {"int": "int", "bool": "bool", "str": "dtype", "float": "float"}  # of shared properties' annotations


@dataclasses.dataclass(frozen=True)
class Typed:
    """A C++ expression. type: "int", "float", "bool", "dtype", "enum NAME", "none", "record", or "array TYPE" or
    "vector TYPE" or "optional TYPE" of one. record: the class of a record. count: elements of an array."""

    text: str
    type: str
    record: type[schema.Record] | None = None
    count: int = 0


def camel(name: str) -> str:
    """A name of Python as one of C++: leaky_relu is LeakyRelu."""
    return "".join(part[:1].upper() + part[1:].lower() for part in name.split("_"))


def dtype_name(name: str) -> str:
    """The C++ name of a storage dtype."""
    return "Dtype::kFloat8E4M3" if name == "float8e4m3fn" else f"Dtype::k{camel(name)}"


def field_type(field: fields.Field) -> Typed:
    """The type of a field, without a text."""
    match field:
        case fields.Integer():
            kind, record = "int", None
        case fields.Operand():
            kind, record = "position", None
        case fields.Unread():
            kind, record = "vector position", None
        case fields.Integers(count=None):
            kind, record = "vector int", None
        case fields.Integers():
            return Typed("", "array int", count=field.count or 0)
        case fields.Number():
            kind, record = "float", None
        case fields.Choice():
            kind, record = f"enum {field.enum}", None
        case fields.Flag():
            kind, record = "bool", None
        case fields.Nested():
            kind, record = "record", field.record
        case fields.Several():
            return Typed("", "vector record", field.record)
        case TransformField():
            kind, record = "transform", None
        case _:
            kind, record = "program", None
    return Typed("", f"optional {kind}" if field.optional else kind, record)


class Translator:
    """Translates expressions over the fields of one record, which C++ calls `name`; "" within the struct itself."""

    def __init__(self, record: type[schema.Record], name: str, where: str) -> None:
        self._record, self._prefix, self._where = record, f"{name}." if name else "", where
        self._bound: dict[str, Typed] = {}

    def text(self, expression: str) -> str:
        """The expression, which is a condition, in C++."""
        return self._of(ast.parse(expression, mode="eval").body).text

    def position(self, path: str) -> tuple[str, list[str]]:
        """An operand's position in C++, and the conditions under which there is one."""
        names, conditions, last = path.split("."), list[str](), Typed("", "")
        for count in range(1, len(names) + 1):
            last = self._of(ast.parse(".".join(names[:count]), mode="eval").body)
            if last.type.startswith("optional "):
                conditions.append(f"{last.text}.has_value()")
        return f"*{last.text}" if last.type.startswith("optional ") else last.text, conditions

    def property(self, name: str, value: Any) -> tuple[str, str]:
        """The C++ type of a shared property, and its expression."""
        function = ast.parse(textwrap.dedent(inspect.getsource(value.fget))).body[0]
        if not isinstance(function, ast.FunctionDef) or not isinstance(function.body[-1], ast.Return):
            raise self._error(f"property {name} is no return statement")
        result = self._of(function.body[-1].value)
        return result.type, result.text

    def _error(self, problem: str) -> ValueError:
        return ValueError(f"{self._where}: {problem}")

    def _of(self, node: ast.AST | None) -> Typed:
        match node:
            case ast.Constant(value=bool() as value):
                return Typed(str(value).lower(), "bool")
            case ast.Constant(value=int() as value):
                return Typed(str(value), "int")
            case ast.Constant(value=float() as value):
                return Typed(repr(value), "float")
            case ast.Name(id="kernel") if issubclass(self._record, schema.Variant):
                return Typed("kernel", "record", self._record.KERNEL)
            case ast.Name(id=name):
                return self._bound[name] if name in self._bound else self._field(self._record, self._prefix, name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self._field(self._record, self._prefix, name)
            case ast.Attribute():
                return self._member(node)
            case ast.Subscript():
                return self._element(node)
            case ast.BinOp(op=op) if type(op) in _BINARY:
                left, right = self._of(node.left), self._of(node.right)
                kind = "float" if "float" in (left.type, right.type) else "int"
                return Typed(f"({left.text} {_BINARY[type(op)]} {right.text})", kind)
            case ast.UnaryOp(op=ast.Not()):
                return Typed(f"!{self._grouped(node.operand)}", "bool")
            case ast.UnaryOp(op=ast.USub()):
                inner = self._of(node.operand)
                return Typed(f"-{inner.text}", inner.type)
            case ast.BoolOp(op=op):
                word = " && " if isinstance(op, ast.And) else " || "
                return Typed(f"({word.join(self._of(value).text for value in node.values)})", "bool")
            case ast.IfExp():
                yes, no = self._of(node.body), self._of(node.orelse)
                return Typed(f"({self._of(node.test).text} ? {yes.text} : {no.text})", yes.type)
            case ast.Compare():
                return self._comparison(node)
            case ast.Call(func=ast.Name(id=name)):
                return self._call(name, node.args)
        raise self._error(f"no C++ for {ast.unparse(node) if node else node}")

    def _grouped(self, node: ast.AST) -> str:
        text = self._of(node).text
        return text if text.startswith("(") or text.isidentifier() or " " not in text else f"({text})"

    def _field(self, record: type[schema.Record], prefix: str, name: str) -> Typed:
        if name in ("inputs", "outputs") and issubclass(record, schema.Meaning):
            return Typed(prefix + name, "vector dtype")
        if schema.is_shared(value := getattr(record, name, None)):
            kind = _TYPES[value.fget.__annotations__["return"]]
            return Typed(f"{prefix}{name}()", kind)
        if issubclass(record, schema.Variant) and name in BASE | VARIANT:
            return Typed(f"std::int64_t{{v.{name}}}", "int")
        if name not in record.schema():
            raise self._error(f"{record.__name__} has no field {name}")
        if issubclass(record, schema.Variant) and isinstance(record.schema()[name], fields.Integer):
            return Typed(f"std::int64_t{{{prefix}{name}}}", "int")
        return dataclasses.replace(field_type(record.schema()[name]), text=prefix + name)

    def _member(self, node: ast.Attribute) -> Typed:
        outer = self._of(node.value)
        if outer.type == "program" and node.attr in ("inputs", "outputs"):
            return Typed(f"{outer.text}.{node.attr}", "vector dtype")
        if outer.type.removeprefix("optional ") == "transform" and node.attr == "reads":
            access = "->" if outer.type.startswith("optional ") else "."
            return Typed(f"{outer.text}{access}reads", "vector record", TransformRead)
        if outer.record is None:
            raise self._error(f"no C++ for {ast.unparse(node)}")
        access = "->" if outer.type.startswith("optional ") else "."
        return self._field(outer.record, outer.text + access, node.attr)

    def _element(self, node: ast.Subscript) -> Typed:
        outer, at = self._of(node.value), self._of(node.slice)
        kind, _, element = outer.type.partition(" ")
        if kind not in ("array", "vector"):
            raise self._error(f"{ast.unparse(node.value)} has no elements")
        text = f"*{at.text}" if at.type.startswith("optional ") else at.text
        if at.type == "int" and not text.isdigit():
            text = f"static_cast<std::size_t>({text})"
        return Typed(f"{outer.text}[{text}]", element, outer.record)

    def _comparison(self, node: ast.Compare) -> Typed:
        parts, left = [], node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            parts.append(self._pair(left, op, right))
            left = right
        return Typed(parts[0] if len(parts) == 1 else f"({' && '.join(parts)})", "bool")

    def _pair(self, left: ast.AST, op: ast.cmpop, right: ast.AST) -> str:
        if isinstance(right, ast.Constant) and right.value is None:
            value = self._of(left)
            if not value.type.startswith("optional "):
                raise self._error(f"{ast.unparse(left)} is never None")
            return f"{'!' if isinstance(op, ast.Is) else ''}{value.text}.has_value()"
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List):
                raise self._error(f"`in` takes a tuple, not {ast.unparse(right)}")
            equal = isinstance(op, ast.In)
            pairs = [self._pair(left, ast.Eq() if equal else ast.NotEq(), one) for one in right.elts]
            return f"({(' || ' if equal else ' && ').join(pairs)})"
        pair = [_value(self._typed_as(left, right)), _value(self._typed_as(right, left))]
        if {v.type for v in pair} == {"position", "int"}:
            pair = [Typed(f"static_cast<std::int64_t>({v.text})", "int") if v.type == "position" else v for v in pair]
        kinds = {v.type for v in pair}
        if len(kinds) > 1 and kinds != {"int", "float"}:
            raise self._error(f"{ast.unparse(left)} and {ast.unparse(right)} differ in type")
        texts = [f"({v.text})" if v.type == "bool" else v.text for v in pair]
        return f"{texts[0]} {_COMPARE[type(op)]} {texts[1]}"

    def _typed_as(self, node: ast.AST, other: ast.AST) -> Typed:
        """The node; a text is a dtype or an enumerator, as the other side says."""
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            return self._of(node)
        kind = self._of(other).type.removeprefix("optional ")
        if kind == "dtype" and node.value in DTYPES:
            return Typed(dtype_name(node.value), "dtype")
        if kind.startswith("enum "):
            return Typed(f"{kind.removeprefix('enum ')}::k{camel(node.value)}", kind)
        raise self._error(f"{node.value!r} is no {kind}")

    def _call(self, name: str, arguments: list[ast.expr]) -> Typed:
        if name in ("all", "any") and isinstance(arguments[0], ast.GeneratorExp):
            return self._quantified(name, arguments[0])
        values = [self._of(argument) for argument in arguments]
        if name == "len":
            return Typed(f"static_cast<std::int64_t>({values[0].text}.size())", "int")
        if name == "size":
            return Typed(f"static_cast<std::int64_t>(Size({values[0].text}))", "int")
        if name == "abs":
            return Typed(f"std::abs({values[0].text})", values[0].type)
        if name in ("max", "min"):
            texts = [f"{v.text}[{k}]" for v in values for k in range(v.count)] + [v.text for v in values if not v.count]
            return Typed(f"std::{name}({{{', '.join(texts)}}})" if len(texts) > 1 else texts[0], "int")
        raise self._error(f"no C++ for the function {name}")

    def _quantified(self, name: str, node: ast.GeneratorExp) -> Typed:
        (loop,) = node.generators
        if not isinstance(loop.target, ast.Name) or loop.ifs:
            raise self._error(f"no C++ for {ast.unparse(node)}")
        over = self._of(loop.iter)
        self._bound[loop.target.id] = Typed("v", over.type.partition(" ")[2], over.record)
        body = self._of(node.elt).text
        del self._bound[loop.target.id]
        return Typed(
            f"std::{name}_of(std::begin({over.text}), std::end({over.text}), [&](const auto& v) {{ return {body}; }})",
            "bool",
        )


def _value(expression: Typed) -> Typed:
    """What an optional expression has; rules ask first whether it has anything."""
    if not expression.type.startswith("optional "):
        return expression
    return dataclasses.replace(expression, text=f"*{expression.text}", type=expression.type.removeprefix("optional "))


def enclosed(text: str) -> str:
    """An expression without parentheses around all of it."""
    depth = 0
    for k, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return text[1:-1] if text.startswith("(") and k == len(text) - 1 else text
    return text
