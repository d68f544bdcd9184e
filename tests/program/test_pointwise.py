"""Programs: verify names every broken rule, and the JSON form is exact."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from onnxopt.program.pointwise import PRIMITIVES, Instruction, Program

# ids: 0 float16 input (computes in float32), 1 bool input, 2.. the instructions
VALID = Program(
    inputs=("float16", "bool"),
    outputs=("float16",),
    code=(
        Instruction("const", "float32", value=2.0),
        Instruction("add", "float32", (0, 2)),
        Instruction("narrow", "float32", (3,), storage="float16"),
        Instruction("select", "float32", (1, 4, 0)),
    ),
    results=(5,),
    depends=((0, 1),),
    ranks=(0,),
)


def test_a_valid_program_passes_and_knows_its_dtypes_and_cost() -> None:
    VALID.verify()
    assert VALID.dtypes == ("float32", "bool", "float32", "float32", "float32", "float32")
    assert VALID.cost == sum(PRIMITIVES[op].cost for op in ("add", "narrow", "select"))


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (Instruction("frobnicate", "float32", (0,)), "no such primitive"),
        (Instruction("add", "float32", (0,)), "takes 2 operands, has 1"),
        (Instruction("neg", "float32", (6,)), "not defined before it"),
        (Instruction("neg", "float32", (5,)), "not defined before it"),  # itself
        (Instruction("neg", "float32", (-1,)), "not defined before it"),
        (Instruction("const", "float32"), "field value belongs to const"),
        (Instruction("neg", "float32", (0,), value=1.0), "field value belongs to const"),
        (Instruction("narrow", "float32", (0,)), "field storage to narrow"),
        (Instruction("neg", "float32", (0,), storage="float16"), "field storage to narrow"),
        (Instruction("narrow", "float32", (0,), storage="float8"), "float8 is no storage dtype"),
        (Instruction("narrow", "float32", (0,), storage="int32"), "int32 is no storage dtype that computes in float32"),
        (Instruction("select", "float32", (0, 0, 0)), r"takes \(bool, T, T\)"),
        (Instruction("select", "float32", (1, 0, 1)), r"takes \(bool, T, T\)"),
        (Instruction("not", "float32", (0,)), "operands cannot be"),
        (Instruction("bit_and", "float32", (0, 0)), "operands cannot be"),
        (Instruction("eq", "bool", (0, 1)), "operands cannot be"),
        (Instruction("lt", "float32", (0, 2)), "returns bool, not float32"),
        (Instruction("neg", "float64", (0,)), "returns float32, not float64"),
        (Instruction("cast", "float16", (0,)), "not float16"),  # a storage dtype, not one to compute in
        (Instruction("const", "float16", value=1.0), "not float16"),
    ],
)
def test_verify_names_the_broken_instruction(last: Instruction, reason: str) -> None:
    broken = dataclasses.replace(VALID, code=(*VALID.code[:3], last))
    with pytest.raises(ValueError, match=rf"instruction 3 \({last.op}\): .*{reason}"):
        broken.verify()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ranks": ()}, "differ in length"),
        ({"results": (5, 5)}, "differ in length"),
        ({"depends": ((0,), (0,))}, "differ in length"),
        ({"outputs": ()}, "differ in length"),
        ({"results": (6,)}, "output 0: float16 cannot store value 6"),
        ({"results": (-1,)}, "output 0: float16 cannot store value -1"),
        ({"inputs": ("float8", "bool")}, "float8: no storage dtype"),
        ({"outputs": ("string",)}, "string: no storage dtype"),
        ({"outputs": ("float64",)}, "output 0: float64 cannot store value 5"),
        ({"depends": ((),)}, "output 0: depends on no input"),
        ({"depends": ((2,),)}, "one that is not there"),
        ({"depends": ((-1,),)}, "one that is not there"),
    ],
)
def test_verify_names_the_broken_output(change: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(VALID, **change).verify()


@pytest.mark.parametrize(
    "op", [op for op, row in PRIMITIVES.items() if op not in ("const", "cast", "narrow", "select")]
)
def test_every_primitive_takes_just_its_operand_dtypes(op: str) -> None:
    row = PRIMITIVES[op]
    for dtype in ("float32", "float64", "int8", "uint64", "bool"):
        call = Instruction(op, "bool" if row.predicate else dtype, (0,) * row.arity)
        storage = "bool" if row.predicate else dtype
        program = Program((dtype,), (storage,), (call,), (1,), ((0,),), (0,))
        if dtype in row.operands:
            program.verify()
        else:
            with pytest.raises(ValueError, match="operands cannot be"):
                program.verify()


def test_json_holds_everything() -> None:
    document = json.loads(json.dumps(VALID.to_json(), allow_nan=False))
    assert document == {
        "inputs": ["float16", "bool"],
        "outputs": ["float16"],
        "code": [
            {"op": "const", "dtype": "float32", "args": [], "value": 2.0},
            {"op": "add", "dtype": "float32", "args": [0, 2]},
            {"op": "narrow", "dtype": "float32", "args": [3], "storage": "float16"},
            {"op": "select", "dtype": "float32", "args": [1, 4, 0]},
        ],
        "results": [5],
        "depends": [[0, 1]],
        "ranks": [0],
    }


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (math.inf, "float32"),
        (-math.inf, "float64"),
        (math.nan, "float32"),
        (-0.0, "float32"),
        (5e-324, "float64"),
        (0.1, "float64"),
        (2**64 - 1, "uint64"),
        (-(2**63), "int64"),
        (False, "bool"),
    ],
)
def test_json_constants_read_back(value: float | int | bool, dtype: str) -> None:
    program = Program((dtype,), (dtype,), (Instruction("const", dtype, value=value),), (1,), ((0,),), (0,))
    read = json.loads(json.dumps(program.to_json(), allow_nan=False))["code"][0]["value"]
    if isinstance(value, float) and not math.isfinite(value):
        assert read == str(value) and read in ("inf", "-inf", "nan")
    else:
        assert repr(read) == repr(value)
