"""Hand-made artifacts for testing the custom-op library: its copy, a kernels.json, and a model of one fused node."""

from __future__ import annotations

import hashlib
import pathlib
import shutil

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.graph.fused_domain import BARE
from onnxopt.program.pointwise import Instruction, Program
from tests.support.wrong_bodies import failing_nodes, read_by_casts, tensor_type

LIBRARY = pathlib.Path(__file__).parents[3] / "onnxopt" / "lib" / "libonnxopt_ops.so"
OPSET = 20
NAME = "Fused_0123abcd"


def one_op(op: str, operands: tuple[str, ...], result: str, storage: str | None = None, value=None) -> Program:
    """The program of one instruction on inputs of these dtypes (no 16-bit floats)."""
    instruction = Instruction(op, result, tuple(range(len(operands))), value, storage)
    every = tuple(range(len(operands)))
    return Program(operands, (result,), (instruction,), (len(operands),), (every,), (0,))


def kernel(program: Program, name: str = NAME, cpu: bool = True, variants=()) -> dict:
    """A row of kernels.json."""
    program.verify()
    return {"name": name, "kind": "pointwise", **program.to_json(), "cpu": cpu, "variants": list(variants)}


def write(folder: pathlib.Path, kernels: list[dict], fatbin: dict | None = None, **fields) -> pathlib.Path:
    """Puts a copy of the library and a kernels.json into `folder`; returns the path of the copy."""
    library = copy_library(folder)
    text = sealed_json.seal({"schema": kernels_json.SCHEMA, "fatbin": fatbin, "kernels": kernels, **fields})
    (folder / "kernels.json").write_text(text)
    return library


def wrong_body(*outputs: str) -> list[onnx.NodeProto]:
    """Nodes of a function of x0 with outputs of these dtypes and of shapes that nobody knows; they fail if they run."""
    return failing_nodes("x0", {f"y{k}": dtype for k, dtype in enumerate(outputs)})


def negation(folder: pathlib.Path, **fields) -> tuple[pathlib.Path, bytes]:
    """A library whose kernel negates under a function that does not, with a fatbin that no CPU session loads.

    And a model of that node with input x0, whose result tells which of the two ran.
    """
    fatbin = b"\x50\xed\x55\xba" + bytes(60)
    described = {"file": "kernels.fatbin", "sha256": hashlib.sha256(fatbin).hexdigest(), "bytes": len(fatbin)}
    variant = {"symbol": "K_strided", "modes": "*", "index": 32, "vector": 4, "unroll": 1, "threads": 128}
    library = write(folder, [kernel(one_op("neg", ("float32",), "float32"), variants=[variant])], described, **fields)
    (folder / "kernels.fatbin").write_bytes(fatbin)
    body = [helper.make_node("Identity", ["x0"], ["y0"])]
    return library, model(body, [("float32", ["n"])], [("float32", ["n"])]).SerializeToString()


def copy_library(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    return pathlib.Path(shutil.copy(LIBRARY, folder))


def model(nodes, inputs, outputs, name: str = NAME, opset: int = OPSET, domain: str = BARE) -> onnx.ModelProto:
    """A model of one node that calls function `name`, whose body is `nodes`.

    inputs, outputs: (dtype, shape) each; the body calls them x0, x1, ... and y0, y1, ... A shape is a list of extents
    and names, or None for unknown. bfloat16, which numpy lacks, is float32 outside the node.
    """
    x = [f"x{k}" for k in range(len(inputs))]
    y = [f"y{k}" for k in range(len(outputs))]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(domain, 1)]
    function = helper.make_function(domain, name, x, y, [*read_by_casts(x), *nodes], opsets[:1])
    inside_x, before, x_infos = _casts(x, inputs, from_outside=True)
    inside_y, after, y_infos = _casts(y, outputs, from_outside=False)
    call = helper.make_node(name, inside_x, inside_y, domain=domain)
    graph = helper.make_graph([*before, call, *after], "fused", x_infos, y_infos)
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)


def _casts(names, rows, from_outside: bool):
    inside, nodes, infos = [], [], []
    for name, (dtype, shape) in zip(names, rows, strict=True):
        outside = "float32" if dtype == "bfloat16" else dtype
        infos.append(helper.make_tensor_value_info(name, tensor_type(outside), shape))
        inside.append(name if outside == dtype else f"{name}_{dtype}")
        if outside != dtype:
            ends = [name, inside[-1]] if from_outside else [inside[-1], name]
            to = tensor_type(dtype if from_outside else outside)
            nodes.append(helper.make_node("Cast", ends[:1], ends[1:], to=to))
    return inside, nodes, infos


def session(model_: onnx.ModelProto, library: pathlib.Path | None, entries: dict[str, str] | None = None, threads=0):
    """A CPU session, with the library registered unless it is None."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(model_.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(session_, arrays) -> list[np.ndarray]:
    """The outputs for these inputs, in order."""
    return session_.run(None, {i.name: a for i, a in zip(session_.get_inputs(), arrays, strict=True)})
