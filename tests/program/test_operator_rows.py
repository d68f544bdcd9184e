"""One row an operator: an operator that nothing else knows is inferred, fused, generated and run by its row alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from onnxopt.codegen import generate, nvrtc
from onnxopt.fusion import eligibility
from onnxopt.graph.shapes import result_dtypes, rules
from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.program.dtypes import FLOATS, NUMBERS, to_ir
from onnxopt.program.expressions import Expr
from onnxopt.program.operators import table as operators
from onnxopt.program.operators.elementwise import Operand, Operator
from onnxopt.program.operators.result_dtypes import (
    ResultDtype,
    always,
    attribute_dtype,
    operand_dtype,
    same,
    tensor_dtype,
)
from onnxopt.program.operators.row_operators import ROW_OPERATORS
from onnxopt.runtime import sessions
from tests.support.custom_ops import operator_models
from tests.support.graphs import graph, node, value

ROOT = Path(__file__).resolve().parents[2]


def _ldexp(x: Expr, exponent: Expr) -> Expr:
    return x * x.builder.const(2.0, x.dtype).pow(exponent.cast(x.dtype))


# A comparison, two operators that mix dtypes, and an operator of ONNX Runtime. Each is one row and nothing else.
_NOT_EQUAL = Operator(
    "NotEqual", 1, (2, 2), NUMBERS, lambda c: c.args[0].eq(c.args[1]).apply("not"), domain="example",
    result=always("bool"), exact=True, samples=(-2.0, 2.0), reference=np.not_equal,
)  # fmt: skip
_LDEXP = Operator(
    "Ldexp", 1, (2, 2), FLOATS, lambda c: _ldexp(*c.args), domain="example",
    operands={1: Operand(frozenset({"int32"}))}, reference=np.ldexp,
)  # fmt: skip
_DEQUANTIZE = Operator(
    "Dequantize", 1, (2, 2), frozenset({"int8", "uint8"}), lambda c: c.args[1] * c.args[0].cast(c.args[1].dtype),
    domain="example", operands={1: Operand(FLOATS)}, result=operand_dtype(1), reference=np.multiply,
)  # fmt: skip
_QUICK_GELU = Operator(
    "QuickGelu", 1, (1, 1), FLOATS, lambda c: c.args[0] / ((c.args[0] * -c.attr("alpha", 1.702)).exp() + 1.0),
    domain="com.microsoft", attributes=({}, {"alpha": 0.5}),
    reference=lambda x, alpha=1.702: x / (1.0 + np.exp(-alpha * x)),
)  # fmt: skip
_ADDED = (_NOT_EQUAL, _LDEXP, _DEQUANTIZE, _QUICK_GELU)
# By operator: declarations of x0, x1, ...; the dtype of the result; the body of the CUDA function that computes it.
_EXPECTED = {
    "NotEqual": (
        "float16[N] x0, float16[N] x1",
        "bool",
        ["const bool v0 = eq(x0, x1);", "const bool v1 = logic_not(v0);", "y0 = v1;"],
    ),
    "Ldexp": (
        "float16[N] x0, int32[N] x1",
        "float16",
        ["const float v1 = cast<float>(x1);", "const float v2 = pow(2.0f, v1);", "const float v3 = mul(x0, v2);",
         "y0 = v3;"],
    ),
    "Dequantize": (
        "int8[N] x0, float16[N] x1",
        "float16",
        ["const float v0 = cast<float>(x0);", "const float v1 = mul(x1, v0);", "y0 = v1;"],
    ),
    "QuickGelu": (
        "float16[N] x0",
        "float16",
        ["const float v1 = mul(x0, -1.702f);", "const float v2 = approximate::exp(v1);",
         "const float v4 = add(v2, 1.0f);", "const float v5 = approximate::div(x0, v4);", "y0 = v5;"],
    ),
}  # fmt: skip


@pytest.fixture(params=_ADDED, ids=lambda row: row.name)
def added(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """A row in the table, in place of the product's own where there is one."""
    row: Operator = request.param
    monkeypatch.setitem(operators.OPERATORS, (row.domain, row.name), row)
    return row


def _model(row: Operator) -> ir.Model:
    """The operator between two others, whose dtypes nobody declares."""
    inputs, dtype, _ = _EXPECTED[row.name]
    operands = [f"x{k}" for k in range(row.arity[0])]
    body = f"v = {row.domain}.{row.name}({', '.join(operands)})  y = Identity(v)"
    model = graph(inputs, f"{dtype}[N] y", body)
    model.opset_imports[row.domain] = 1
    assert value(model, "v").dtype is None
    return model


def _dtype(model: ir.Model) -> ir.DataType | None:
    return shape_inference.infer(model).ir_dtype(value(model, "v"))


@pytest.mark.parametrize("row", _ADDED, ids=lambda row: row.name)
def test_without_a_row_nothing_is_known(row: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the dtype of the first operand nor float32 is taken for the dtype of the result."""
    monkeypatch.delitem(operators.OPERATORS, (row.domain, row.name), raising=False)
    model = _model(row)
    assert not eligibility.is_elementwise(node(model, "v"))
    assert _dtype(model) is None


def test_the_row_states_dtype_and_shape(added: Operator) -> None:
    model = _model(added)
    shapes = shape_inference.infer(model)
    v = value(model, "v")
    assert (shapes.ir_dtype(v), shapes.dims(v)) == (to_ir(_EXPECTED[added.name][1]), ("N",))
    assert eligibility.why_not(node(model, "v"), model.opset_imports, shapes, set()) is None


def test_the_cuda_text_computes_it_and_compiles(added: Operator, tmp_path: Path) -> None:
    dtype = "int8" if added is _DEQUANTIZE else "float16"
    _, kernels = operator_models.fused(list(operator_models.uses_of(added, dtype)))
    text = generate.generate(kernels)
    assert "\n".join(f"    {line}" for line in _EXPECTED[added.name][2]) in text
    assert nvrtc.compile_cuda(text, ["sm_75"], tmp_path)


def test_the_table_test_passes(added: Operator, tmp_path: Path, library: Path) -> None:
    """As test_operators.py tries every row: in all of its dtypes, in ONNX Runtime with the library."""
    added.verify()
    for dtype in sorted(added.dtypes):
        chosen = list(operator_models.uses_of(added, dtype))
        folder = tmp_path / dtype
        folder.mkdir()
        operator_models.build(chosen, folder, archs=())
        assert chosen and not operator_models.disagreements(chosen, folder, sessions.CPU)


def test_every_row_of_the_product_is_free_of_contradictions() -> None:
    for row in operators.OPERATORS.values():
        row.verify()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"meaning": lambda c: c.args[0] < c.args[1]}, r"the result is bfloat16, but its meaning computes bool"),
        ({"result": always("bool")}, r"the result is bool, but its meaning computes float32"),
        ({"result": attribute_dtype("to")}, r"the row does not say which dtype the result has"),
        ({"result": operand_dtype(2)}, r"the row does not say which dtype the result has"),
        ({"meaning": lambda c: c.args[0].apply("mod", c.args[1])}, r"instruction 0 \(mod\): operands cannot be"),
    ],
)
def test_a_row_that_contradicts_itself_cannot_be_made(fields: dict, reason: str) -> None:
    """A comparison above all, whose row forgets to say that its result is bool."""
    whole = {"name": "New", "since": 1, "arity": (2, 2), "dtypes": FLOATS, "meaning": lambda c: c.args[0] + c.args[1]}
    assert Operator(**whole).result is same
    with pytest.raises(ValueError, match=rf"New\(bfloat16, bfloat16\): {reason}"):
        Operator(**whole | fields)


def test_verify_tries_every_dtype_and_attribute_set() -> None:
    row = Operator("New", 1, (1, 1), FLOATS, lambda c: c.args[0].cast("float32"), attributes=({}, {"fmod": 1}))
    with pytest.raises(ValueError, match=r"New\(float64\): the result is float64, but its meaning computes float32"):
        row.verify()


def test_a_row_of_another_domain_needs_a_reference() -> None:
    row = Operator("New", 1, (1, 1), FLOATS, lambda c: c.args[0].exp(), domain="example")
    with pytest.raises(ValueError, match="New: a row of example needs a reference"):
        row.verify()


_CONTRIB_USES = [use for use in operator_models.uses("float32") if use.row.domain == operators.CONTRIB]


@pytest.mark.parametrize("use", _CONTRIB_USES, ids=lambda use: use.name)
def test_references_agree_with_onnx_runtimes_own_kernels(use: operator_models.Use) -> None:
    feeds = use.feeds()
    for k, name in enumerate(feeds):
        if use.row.operand(k).scalar:
            feeds[name] = np.asarray(feeds[name][0, 0])
    inputs = [
        helper.make_tensor_value_info(name, int(to_ir(dtype)), array.shape)
        for (name, array), dtype in zip(feeds.items(), use.dtypes, strict=True)
    ]
    graph = helper.make_graph([use.node()], "one", inputs, [onnx.ValueInfoProto(name=f"{use.name}_v")])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(use.row.domain, 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (computed,) = session.run(None, feeds)
    assert operator_models.ulp_distance(computed, operator_models.expected(use, feeds)) <= use.row.ulp


_RULES: dict[tuple[str, str], ResultDtype] = {
    **{key: row.result for key, row in operators.OPERATORS.items()},
    **{key: rows[0].result for key, rows in ROW_OPERATORS.items()},
    **result_dtypes.OTHERS,
}
_BY_ATTRIBUTE = {"Cast", "ConstantOfShape", "DequantizeLinear", "QuantizeLinear"}
_OF_ONNX = sorted(name for domain, name in _RULES if not domain and onnx.defs.has(name))


@pytest.mark.parametrize("name", [name for name in _OF_ONNX if name not in _BY_ATTRIBUTE])
def test_result_dtypes_are_those_of_onnx(name: str) -> None:
    """Each type variable of the schema stands for another dtype; the result has that of its own variable."""
    schema = onnx.defs.get_schema(name)
    variables = dict.fromkeys(formal.type_str for formal in schema.inputs)
    others = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.UINT32)
    dtypes = dict(zip(variables, others, strict=False))
    variable = schema.outputs[0].type_str
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}.get(variable, [variable])
    only = ir.DataType[allowed[0].removeprefix("tensor(").removesuffix(")").upper()] if len(allowed) == 1 else None
    expected = only or dtypes[variable]
    assert _RULES["", name]([dtypes[formal.type_str] for formal in schema.inputs], {}) == expected


def test_dtypes_told_by_attributes() -> None:
    cast, filled = _RULES["", "Cast"], _RULES["", "ConstantOfShape"]
    assert cast([ir.DataType.FLOAT], {"to": 8}) == ir.DataType.STRING
    assert [cast([ir.DataType.FLOAT], attributes) for attributes in ({}, {"to": None}, {"to": 999})] == [None] * 3
    assert filled([ir.DataType.INT64], {}) == ir.DataType.FLOAT
    assert filled([ir.DataType.INT64], {"value": ir.tensor(np.zeros(1, np.int32))}) == ir.DataType.INT32
    assert filled([ir.DataType.INT64], {"value": None}) is None
    assert tensor_dtype("value", default="bool")([], {}) == ir.DataType.BOOL


def test_whatever_has_a_rule_of_shapes_has_one_of_dtypes() -> None:
    with_shapes = {*(("", name) for name in rules._RULES), *((operators.CONTRIB, name) for name in rules._MICROSOFT)}
    assert not with_shapes - _RULES.keys()


@pytest.mark.parametrize("name", ["Less", "And", "IsInf", "Where", "Cast"])
def test_without_a_row_onnxs_schema_says_the_dtype(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = {"Less": "x, x", "And": "b, b", "IsInf": "x", "Where": "b, x, x", "Cast": "x"}[name]
    attributes = "<to = 7>" if name == "Cast" else ""
    body = f"v = {name}{attributes}({operands})  y = Identity(v)"
    expected = _dtype(graph("float16[N] x, bool[N] b", "float[N] y", body))
    assert expected in (ir.DataType.BOOL, ir.DataType.FLOAT16, ir.DataType.INT64)
    monkeypatch.delitem(operators.OPERATORS, ("", name))
    assert _dtype(graph("float16[N] x, bool[N] b", "float[N] y", body)) == expected


def test_the_documents_list_of_places_of_a_primitive_is_right() -> None:
    """docs/adding-an-operator.md: log1p, which has a faster form too, stands in the listed files and in no other."""
    text = (ROOT / "docs" / "adding-an-operator.md").read_text()
    needed, sometimes = (part.split("## ")[0] for part in text.split("| file |")[1:])
    paths = re.compile(r"`([\w/]+/\w+\.\w+)`")
    listed = set(paths.findall(needed))
    assert len(listed) == 6 and all("log1p" in (ROOT / path).read_text().lower() for path in listed)
    sources = [p for folder in ("onnxopt", "custom_ops", "cuda_kernels") for p in (ROOT / folder).rglob("*.*")]
    naming = {
        path.relative_to(ROOT).as_posix()
        for path in sources
        if path.suffix in (".py", ".h", ".cc", ".cuh") and "log1p" in path.read_text().lower()
    }
    assert naming - {"onnxopt/program/operators/table.py"} <= listed | set(
        paths.findall(sometimes)
    )  # Softplus is made of it
