"""Ways to damage a kernels.json or the fatbin beside it, each with what the library's error must say."""

from __future__ import annotations

import copy
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.program.pointwise import Instruction, Program

FATBIN = b"not a fatbin"
VARIANT = {"symbol": "K_strided", "modes": "**", "index": 32, "vector": 4, "unroll": 1, "threads": 128}


def document() -> dict[str, Any]:
    """A kernels.json without a fault: (x0 + 0.5) * x1, float16 in and out."""
    program = Program(
        ("float16", "float16"),
        ("float16",),
        (
            Instruction("const", "float32", (), 0.5),
            Instruction("add", "float32", (0, 2)),
            Instruction("narrow", "float32", (3,), None, "float16"),
            Instruction("mul", "float32", (4, 1)),
        ),
        (5,),
        ((0, 1),),
        (0,),
    )
    program.verify()
    kernel = {"name": "K", "kind": "pointwise", **program.to_json(), "cpu": True, "variants": [dict(VARIANT)]}
    fatbin = {"file": "kernels.fatbin", "sha256": hashlib.sha256(FATBIN).hexdigest(), "bytes": len(FATBIN)}
    return {"schema": kernels_json.SCHEMA, "fatbin": fatbin, "kernels": [kernel]}


def set_field(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the field at a path such as kernels.0.code.1.op; deletes it for the value `...`."""

    def damage(text: dict[str, Any]) -> None:
        *steps, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        at: Any = text
        for step in steps:
            at = at[step]
        if value is ...:
            del at[last]
        else:
            at[last] = value

    return damage


def _twice(text: dict[str, Any]) -> None:
    text["kernels"].append(copy.deepcopy(text["kernels"][0]))


# what to do to the document, and a part of the message that must come back
DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no schema": (set_field("schema", ...), 'has no field "schema"'),
    "another schema": (set_field("schema", 3), "schema is 3, and this library reads schema 4"),
    "schema is a text": (set_field("schema", "3"), "schema is not an integer"),
    "no kernels": (set_field("kernels", ...), 'has no field "kernels"'),
    "kernels is an object": (set_field("kernels", {}), "kernels is not an array"),
    "a kernel is a number": (set_field("kernels.0", 7), "kernels[0] is not an object"),
    "name with a space": (set_field("kernels.0.name", "a b"), "kernels[0].name"),
    "name empty": (set_field("kernels.0.name", ""), "kernels[0].name"),
    "name there twice": (_twice, "is there twice"),
    "unknown input dtype": (set_field("kernels.0.inputs.1", "float8"), 'inputs[1] is "float8"'),
    "no inputs": (set_field("kernels.0.inputs", []), "0 inputs"),
    "unknown primitive": (set_field("kernels.0.code.1.op", "frobnicate"), 'code[1].op is "frobnicate"'),
    "too few operands": (set_field("kernels.0.code.1.args", [0]), "instruction 1 (add): takes 2 operands, has 1"),
    "operand not defined": (set_field("kernels.0.code.1.args.1", 3), "instruction 1 (add): uses value 3"),
    "operand far away": (set_field("kernels.0.code.1.args.1", 10**9), "uses value 1000000000"),
    "operand negative": (set_field("kernels.0.code.1.args.1", -1), "code[1].args[1] is not an integer"),
    "operand huge": (set_field("kernels.0.code.1.args.1", 2**64), "code[1].args[1] is not an integer"),
    "operand a fraction": (set_field("kernels.0.code.1.args.1", 0.5), "code[1].args[1] is not an integer"),
    "operands differ": (set_field("kernels.0.inputs.1", "int32"), "operands cannot be float32 and int32"),
    "wrong result dtype": (set_field("kernels.0.code.1.dtype", "bool"), "returns float32, not bool"),
    "storage as result dtype": (
        set_field("kernels.0.code.1.dtype", "float16"),
        "float16, which is not a compute dtype",
    ),
    "constant without value": (set_field("kernels.0.code.0.value", ...), "field value belongs to const"),
    "constant not a number": (set_field("kernels.0.code.0.value", "half"), "code[0].value is not a number"),
    "constant null": (set_field("kernels.0.code.0.value", None), "code[0].value is not a number"),
    "value on add": (set_field("kernels.0.code.1.value", 1.0), "field value belongs to const"),
    "narrow without storage": (set_field("kernels.0.code.2.storage", ...), "field storage to narrow"),
    "narrow to an integer": (set_field("kernels.0.code.2.storage", "int8"), "float32 to int8"),
    "result not there": (set_field("kernels.0.results.0", 6), "output 0: float16 cannot store value 6"),
    "output of another dtype": (set_field("kernels.0.outputs.0", "int32"), "output 0: int32 cannot store value 5"),
    "results too short": (set_field("kernels.0.results", []), "differ in length"),
    "depends on nothing": (set_field("kernels.0.depends.0", []), "output 0: depends on no input"),
    "depends on no such input": (set_field("kernels.0.depends.0", [0, 2]), "output 0: depends on input 2"),
    "rank too high": (set_field("kernels.0.ranks.0", 1000), "output 0: rank 1000"),
    "cpu is a number": (set_field("kernels.0.cpu", 1), "cpu is not true or false"),
    "no variants": (set_field("kernels.0.variants", []), "variants is empty"),
    "symbol not an identifier": (set_field("kernels.0.variants.0.symbol", "K strided"), "variants[0].symbol"),
    "modes too short": (set_field("kernels.0.variants.0.modes", "*"), "variants[0].modes"),
    "modes of other letters": (set_field("kernels.0.variants.0.modes", "*Q"), "variants[0].modes"),
    "index width 16": (set_field("kernels.0.variants.0.index", 16), "variants[0].index"),
    "index width 48": (set_field("kernels.0.variants.0.index", 48), "neither 32 nor 64"),
    "vector not a power of 2": (set_field("kernels.0.variants.0.vector", 3), "not a power of 2"),
    "too many threads": (set_field("kernels.0.variants.0.threads", 2048), "variants[0].threads"),
    "unroll of 0": (set_field("kernels.0.variants.0.unroll", 0), "variants[0].unroll"),
    "fatbin is a text": (set_field("fatbin", "kernels.fatbin"), "fatbin is not an object"),
    "fatbin missing": (set_field("fatbin.file", "other.fatbin"), "cannot read"),
    "fatbin outside": (set_field("fatbin.file", "../kernels.fatbin"), "leaves the folder"),
    "fatbin of another size": (set_field("fatbin.bytes", 13), "has 12 bytes where kernels.json says 13"),
    "fatbin of another content": (set_field("fatbin.sha256", "0" * 64), "where kernels.json says 000000"),
}


def write(folder: pathlib.Path, damage: Callable[[dict[str, Any]], None]) -> None:
    """Writes the damaged kernels.json, whose digest fits, and the fatbin into a folder that holds the library."""
    text = document()
    damage(text)
    (folder / "kernels.json").write_text(sealed_json.seal(text))
    (folder / "kernels.fatbin").write_bytes(FATBIN)
