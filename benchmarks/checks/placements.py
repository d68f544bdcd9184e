"""Which operators ONNX Runtime's CUDA provider has no kernel for, by version and dtype: tried, operator by operator.

    python -m benchmarks.checks.placements [--out onnxopt/graph/placement/provider_kernels.json] [--processes 15]

Opens every model of one node among ONNX's own test cases, at opset 20 and at each later version of its operator, with
its float32 and int64 values in each other dtype, once where no node may run on the CPU. 18,000 models take 70 seconds
on an H200 with 16 cores. What the CPU provider opens and the CUDA provider does not is in the table:

    {"onnxruntime": release, "without_kernel": [operators that never ran on the GPU],
     "without_kernel_of": {operator: {since version: {type variable: [dtypes]}}}}

A dtype is there where no case with it ran on the GPU. Operators that ONNX defines by others are left out: ONNX Runtime
inlines these.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import onnx

_TABLE = pathlib.Path("onnxopt/graph/placement/provider_kernels.json")
_TENSOR = onnx.TensorProto
_Typed = tuple[str, str]  # a type variable of an operator, and a dtype
_CHANGES: dict[str, tuple[int, int] | None] = {
    "as it is": None,
    **{f"floats to {b}": (1, b) for b in (2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16)},
    **{f"int64 to {b}": (7, b) for b in (1, 6, 9, 10, 11)},
}
_FIRST = 20  # opset that normalization brings models to
_IR_VERSION = 11
_CHANGED_CASES = 6  # of an operator, whose dtypes are changed
_ATTEMPTS = 6  # a model may end its process, and the next process goes on after it
_NOT_BY_DTYPE = frozenset(
    {"GRU", "Identity", "If", "LSTM", "Loop", "OneHot", "OptionalGetElement", "OptionalHasElement"}
)


def models() -> list[tuple[str, onnx.ModelProto]]:
    """Each case, change and opset with its model."""
    from onnx.backend.test.case.node import collect_testcases

    since = collections.defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            since[schema.name].add(schema.since_version)
    found, cases = [], collections.Counter[str]()
    for case in collect_testcases(None):
        single = case.model
        if single is None or len(single.graph.node) != 1 or single.graph.node[0].domain:
            continue
        operator = single.graph.node[0].op_type
        cases[operator] += 1
        newest = next(entry.version for entry in single.opset_import if not entry.domain)
        opsets = {v for v in since[operator] if _FIRST < v <= newest} | {min(_FIRST, newest)}
        for name, change in _CHANGES.items():
            if change is not None and cases[operator] > _CHANGED_CASES:
                break
            changed = _changed(single, change)
            serialized = changed.SerializeToString() if changed is not None else b""
            for opset in sorted(opsets) if serialized else ():
                model = onnx.ModelProto()
                model.ParseFromString(serialized)
                model.ir_version = min(model.ir_version, _IR_VERSION)
                for entry in model.opset_import:
                    entry.version = opset if not entry.domain else entry.version
                found.append((f"{case.name}, {name}, opset {opset}", model))
    return found


def _changed(model: onnx.ModelProto, change: tuple[int, int] | None) -> onnx.ModelProto | None:
    """The model with inputs and outputs of one dtype in another; None where it has none of it."""
    if change is None:
        return model
    copy, before, after = onnx.ModelProto(), *change
    copy.CopyFrom(model)
    tensors = [value.type.tensor_type for value in (*copy.graph.input, *copy.graph.output)]
    of_dtype = [tensor for tensor in tensors if tensor.elem_type == before]
    for tensor in of_dtype:
        tensor.elem_type = after
    return copy if of_dtype else None


def try_models(part: int, parts: int, out: pathlib.Path) -> None:
    """Append a line for each model of a part: its title and what came of it. Goes on where `out` ends."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    done = {json.loads(line)[0] for line in out.read_text().splitlines()} if out.exists() else set()
    with out.open("a") as file:
        for title, model in models()[part::parts]:
            if title in done:
                continue
            for row in ([title, "crash"], [title, _opened_on(model)]):
                file.write(json.dumps(row) + "\n")
                file.flush()


def _opened_on(model: onnx.ModelProto) -> str:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CUDAExecutionProvider"])
        return "gpu"
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no class
        falls_back = "fallback" in str(error).lower()
    try:
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return "cpu" if falls_back else "error"
    except Exception:  # noqa: BLE001
        return "invalid"


def table(results: dict[str, str]) -> dict[str, Any]:
    """The operators that never ran on the GPU; and of others the dtypes that keep a node on the CPU."""
    ran: dict[tuple[str, int], set[_Typed]] = collections.defaultdict(set)
    untried: dict[str, set[str]] = {}  # of an operator's first operand
    stayed: dict[tuple[str, int], list[list[_Typed]]] = collections.defaultdict(list)
    for title, model in models():
        if title not in results:
            continue
        node, opset = model.graph.node[0], next(e.version for e in model.opset_import if not e.domain)
        schema: Any = None
        with contextlib.suppress(onnx.defs.SchemaError):  # of a model that is invalid at this opset
            schema = onnx.defs.get_schema(node.op_type, opset, "")
        if (
            schema is None
            or schema.has_function
            or schema.has_context_dependent_function
            or node.op_type in _NOT_BY_DTYPE
        ):
            continue
        key, typed = (node.op_type, schema.since_version), _variables(model, schema)
        if typed:
            untried.setdefault(node.op_type, _dtypes(schema)).discard(typed[0][1])
        if results[title] == "gpu":
            ran[key].update(typed)
        elif results[title] == "cpu":
            stayed[key].append(typed)
    rows: dict[str, Any] = {}
    never = {operator for operator, _ in stayed} - {operator for operator, _ in ran}
    never = {operator for operator in never if not untried.get(operator)}
    for (operator, version), models_on_cpu in sorted(stayed.items()):
        if operator in never:
            continue
        for variable, dtype in sorted(_reasons(models_on_cpu, ran[operator, version])):
            rows.setdefault(operator, {}).setdefault(str(version), {}).setdefault(variable, []).append(dtype)
    return {"without_kernel": sorted(never), "without_kernel_of": rows}


def _reasons(models_on_cpu: list[list[_Typed]], ran: set[_Typed]) -> set[_Typed]:
    """The variables, each with its dtype, for which nodes stayed on the CPU: no node with one ran on the GPU.

    Where several may be the reason and none of them is that of another model, it is the first.
    """
    unexplained = [[typed for typed in model if typed not in ran] for model in models_on_cpu]
    reasons = {typed[0] for typed in unexplained if len(typed) == 1}
    return reasons | {typed[0] for typed in unexplained if typed and reasons.isdisjoint(typed)}


def _dtypes(schema: Any) -> set[str]:
    """The dtypes of tensors that an operator's first operand may have, but for complex numbers."""
    types = (name for formal in schema.inputs[:1] for name in formal.types if name.startswith("tensor("))
    names = {name.removeprefix("tensor(").removesuffix(")") for name in types}
    return {name for name in names if not name.startswith("complex")}


def _variables(model: onnx.ModelProto, schema: Any) -> list[_Typed]:
    """The type variables of a model's one node, each with its dtype."""
    graph = model.graph
    dtypes = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    found = []
    for formals, names in ((schema.inputs, graph.node[0].input), (schema.outputs, graph.node[0].output)):
        for k, name in enumerate(names):
            if dtypes.get(name):  # not of optional inputs, sequences
                variable = formals[min(k, len(formals) - 1)].type_str
                found.append((variable, _TENSOR.DataType.Name(dtypes[name]).lower()))
    return found


def main() -> int:
    """Run the trials in processes of their own and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=_TABLE)
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is not None:
        try_models(given.part, given.processes, given.out)
        return 0
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(given.processes) as pool:
        files = [pathlib.Path(scratch) / f"{part}.jsonl" for part in range(given.processes)]

        def run(part: int) -> None:
            command = [sys.executable, "-m", "benchmarks.checks.placements", "--part", str(part)]
            command += ["--processes", str(given.processes), "--out", str(files[part])]
            for _ in range(_ATTEMPTS):
                if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0:
                    return

        list(pool.map(run, range(given.processes)))
        results = dict(json.loads(line) for file in files for line in file.read_text().splitlines())
    import onnxruntime as ort

    rows = {"onnxruntime": ort.__version__, **table(results)}
    given.out.write_text(json.dumps(rows, indent=1) + "\n")
    counts = collections.Counter(results.values())
    print(f"{len(results)} models: {dict(counts)}; {len(rows['without_kernel_of'])} operators in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
