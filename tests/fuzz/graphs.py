"""Random graphs through the whole pipeline: python -m tests.fuzz [--seconds 60] [--seed 0] [--regions 20000].

A finding is an error, a fusion that verification had to leave out, or a changed interface. Its model stays in
build/fuzz/SEED.onnx, also where it kills the process.

Graphs are kept well-conditioned, or two correct results could differ: operators with poles get operands squeezed into
their domain, and operators that jump read only the graph's own inputs. Where ONNX Runtime's own result is further from
onnx's reference evaluator than verification allows (its Sigmoid(-8) is off by 2e-4 of itself), a fusion that was left
out for not agreeing with it is no finding, and is counted apart.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx
import onnx.helper
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, defs
from onnx.reference import ReferenceEvaluator

from onnxopt.graph import traits
from onnxopt.pipeline import flow
from onnxopt.program.operators import table as operators
from onnxopt.verification.compare import Limit, compare
from onnxopt.verification.sampling import cases, samples
from tests.fuzz import index as fuzz_index
from tests.support.fusing import cpu_kernels_forced

OPSET = 20
FOLDER = Path(__file__).resolve().parents[2] / "build" / "fuzz"
TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
_ALL_TYPES = {**TYPES, "bfloat16": TensorProto.BFLOAT16}  # ONNX Runtime's CPU provider has hardly a kernel for it
_TYPE_NAMES = {**{d: f"tensor({d})" for d in _ALL_TYPES}, "float32": "tensor(float)"}
_FLOATS = ("float32", "float32", "float16")
DEFAULT_DOMAIN = operators.Operator.__dataclass_fields__["samples"].default
GROWS = frozenset({"Exp", "Sinh", "Cosh", "Pow"})
DIVIDES = frozenset({"Div", "Reciprocal", "Mod"})
_SAID_EVERY = 1000  # seeds
_SCANS = 0.06  # of the operators
LEFT_OUT = "left out"

Dims = tuple[str | int, ...]
Value = tuple[str, str, Dims]  # name, dtype, dims


class Graph:
    """A random graph under construction; equal arguments give equal graphs.

    floats: what its float dtype is drawn from. most: operators that it may have.
    """

    def __init__(self, seed: int, floats: Sequence[str] = _FLOATS, most: int = 24):
        self.rng = random.Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        rank = self.rng.choice([1, 2, 2, 3, 3, 4])
        self.domain = tuple(self.rng.choice([1, 2, 3, 8, 17, f"d{axis}"]) for axis in range(rank))
        self.float = self.rng.choice(floats)
        dtypes = [self.float, *self.rng.choices([self.float, "int32", "int64", "bool"], k=self.rng.randint(0, 3))]
        self.inputs = [self._input(f"x{k}", dtype, whole=k == 0) for k, dtype in enumerate(dtypes)]
        self.values = list(self.inputs)
        self.rows = [r for r in operators.OPERATORS.values() if not r.domain and r.since <= OPSET]
        indexing = self.rng.choice([0.0, 0.3, 0.6])
        for _ in range(self.rng.randint(3, most)):
            if self.rng.random() < indexing:
                fuzz_index.grow(self)
            elif self.rng.random() < _SCANS:
                self._scan()
            else:
                self._grow()

    def model(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in node.input}
        results = [v for v in self.values if v not in self.inputs]
        outputs = [v for v in results if v[0] not in read or self.rng.random() < 0.1]
        graph = onnx.helper.make_graph(
            self.nodes, "fuzz", [_info(v) for v in self.inputs], [_info(v) for v in outputs], self.initializers
        )
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=9)

    def _input(self, name: str, dtype: str, whole: bool) -> Value:
        if whole:
            return name, dtype, self.domain
        dims = self.domain[self.rng.randint(0, len(self.domain)) :]
        return name, dtype, tuple(1 if self.rng.random() < 0.4 else d for d in dims)

    def _grow(self) -> None:
        row = self.rng.choice(self.rows)
        schema = defs.get_schema(row.name, OPSET)
        least, most = row.arity
        count = self.rng.randint(least, most if most is not None else 4)
        bound: dict[str, str] = {}  # type variable -> dtype
        operands = []
        for k in range(count):
            formal = schema.inputs[min(k, len(schema.inputs) - 1)]
            variable, dtypes = formal.type_str, {d for d in _ALL_TYPES if _TYPE_NAMES[d] in formal.types}
            operand = self._operand(row, {bound[variable]} & dtypes if variable in bound else dtypes)
            if operand is None:
                return
            bound.setdefault(variable, operand[1])
            operands.append(operand)
        if row.name == "Clip":
            operands = [operands[0], *(self._constant(operands[0][1], low) for low in (-1, 1))]
        if not fuzz_index.fits([v[2] for v in operands]):
            return
        if row.name == "PRelu" and _broadcast(v[2] for v in operands) != operands[0][2]:
            return  # its slope may not be the larger one
        attributes = dict(self.rng.choice(row.attributes))
        if row.name == "Mod":
            attributes = {"fmod": 1}  # floats have no other
        result = bound.get(schema.outputs[0].type_str, "bool")
        if row.name == "Cast":
            result = self.rng.choice([d for d in TYPES if d == "float32" or not self._is_computed(operands[0])])
            attributes = {"to": TYPES[result]}
        self._emit(row.name, operands, result, **attributes)

    def _scan(self) -> None:
        """A CumSum of positive values, as sums that cancel differ by more than their size; of integers any."""
        fit = [v for v in self.values if v[1] in ("float32", "int32", "int64") and v[2]]
        if not fit:
            return
        value = self.rng.choice(fit[-6:])
        summed = self._squeeze(value, 0.1, 1.0) if value[1] == "float32" else value
        axis = self._constant("int64", self.rng.randrange(-len(value[2]), len(value[2])))
        flags = {"exclusive": self.rng.randint(0, 1), "reverse": self.rng.randint(0, 1)}
        total = self._emit("CumSum", [summed, axis], value[1], **flags)
        if value[1] == "float32":
            self._emit("Mul", [total, self._constant("float32", 0.05)], "float32")

    def _operand(self, row: operators.Operator, dtypes: set[str]) -> Value | None:
        """A value of one of these dtypes that this operand may be, well-conditioned; None where there is none."""
        fit = [v for v in self.values if v[1] in dtypes and v[1] in row.dtypes]
        if row.exact or row.name in ("Cast", "Mod"):
            fit = [v for v in fit if not self._is_computed(v)]
        if row.name in DIVIDES | {"Pow", "BitShift"}:
            fit = [v for v in fit if v[1] == self.float]
        if not fit:
            return None
        value = self.rng.choice(fit[-6:] if self.rng.random() < 0.7 else fit)
        if value[1] != self.float or row.name == "Mod":  # which jumps: what it reads must not be computed
            return value
        if row.name in DIVIDES:
            return self._squeeze(value, 0.5, 2.0)
        if row.name in GROWS or row.samples != DEFAULT_DOMAIN:
            return self._squeeze(value, *(row.samples if row.samples != DEFAULT_DOMAIN else (-2.0, 2.0)))
        return value

    def _is_computed(self, value: Value) -> bool:
        """Whether rounding may differ in it: index operations on a graph's input only move it."""
        return value[1] in ("float32", "float16", "bfloat16") and value not in self.inputs

    def _squeeze(self, value: Value, low: float, high: float) -> Value:
        """low + (high - low) * sigmoid(value), a little inside of both: acos(1 - 1e-7) is 3e-4 away from acos(1).

        Never across 0, where the sum cancels and two correct results of asin differ by more than their size.
        """
        if low < 0 < high:
            low, high = self.rng.choice([(low, low / 4), (high / 4, high)])
        margin = (high - low) / 16
        low, high = low + margin, high - margin
        squeezed = self._emit("Sigmoid", [value], value[1])
        scaled = self._emit("Mul", [squeezed, self._constant(value[1], high - low)], value[1])
        return self._emit("Add", [scaled, self._constant(value[1], low)], value[1])

    def _constant(self, dtype: str, number: float) -> Value:
        name = f"c{len(self.initializers)}"
        self.initializers.append(onnx.helper.make_tensor(name, _ALL_TYPES[dtype], [], [number]))
        return name, dtype, ()

    def _emit(self, op_type: str, operands: list[Value], dtype: str, **attributes: object) -> Value:
        name = f"v{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op_type, [v[0] for v in operands], [name], name=name, **attributes))
        self.values.append((name, dtype, _broadcast(v[2] for v in operands)))
        return self.values[-1]


def _broadcast(shapes: Iterable[Dims]) -> Dims:
    """The numpy broadcast of shapes whose dims are equal where neither is 1."""
    dims: Dims = ()
    for other in shapes:
        size = max(len(dims), len(other))
        pairs = zip((1,) * (size - len(dims)) + dims, (1,) * (size - len(other)) + other, strict=True)
        dims = tuple(b if a == 1 else a for a, b in pairs)
    return dims


def _info(value: Value) -> onnx.ValueInfoProto:
    name, dtype, dims = value
    return onnx.helper.make_tensor_value_info(name, _ALL_TYPES[dtype], dims)


def examine(seed: int, folder: Path) -> tuple[str | None, int]:
    """What is wrong with the pipeline's answer to this seed's graph, None where nothing is; and how many were fused.

    The graph is written to SEED.onnx in `folder`, and stays there.
    """
    model = Graph(seed).model()
    path, output = folder / f"{seed}.onnx", folder / f"{seed}.artifact"
    onnx.save(model, path)
    try:
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  (ORT's errors have no common class; it has no CPU kernel for some dtypes)
        return None, 0
    try:
        # Every kernel runs, also those that a CPU-only machine leaves to ONNX Runtime.
        with cpu_kernels_forced():
            manifest = flow.optimize(path, output, archs=()).manifest
        optimized = onnx.load(output / "model.onnx")
    except Exception as error:  # noqa: BLE001  (any error at all is a finding)
        return f"{type(error).__name__}: {error}", 0
    finally:
        shutil.rmtree(output, ignore_errors=True)
    if manifest.left_out:
        return f"{LEFT_OUT} {manifest.left_out[0].name}: {manifest.left_out[0].reason}", 0
    for kind in ("input", "output"):
        before, after = (list(getattr(m.graph, kind)) for m in (model, optimized))
        if before != after:
            return f"{kind}s changed", 0
    return None, sum(len(k.sites) for k in manifest.kernels)


def original_errs(path: Path, output: str) -> bool:
    """Whether ONNX Runtime's own floats in this output leave the limit around those of onnx's reference evaluator.

    Models of 16-bit floats are held against float32 already; the evaluator rounds after every node and is no oracle.
    """
    known = traits.of(ir.load(path))
    if known.precision not in ("float32", "float64"):
        return False
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    evaluator = ReferenceEvaluator(str(path))
    limit = Limit.of(known.precision, float_decides=True)
    for sizes, seed in itertools.product(samples.usual_sizes(known.inputs), cases.SEEDS):
        feeds = samples.draw(known.inputs, sizes, seed, known.uses)
        (expected,), (found,) = evaluator.run([output], feeds), session.run([output], feeds)
        if not compare(expected, found, limit).ok:
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this long")
    parser.add_argument("--seed", type=int, default=0, help="first seed; later graphs take the numbers after it")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="stop after this many graphs")
    parser.add_argument("--regions", type=int, default=sys.maxsize, help="stop after this many fused places")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    onnxruntime.set_default_logger_severity(4)
    start, seed, findings, kernels, excused = time.monotonic(), options.seed, 0, 0, 0
    while time.monotonic() - start < options.seconds and seed - options.seed < options.count:
        problem, fused = examine(seed, FOLDER)
        kernels += fused
        if seed % _SAID_EVERY == 0:
            print(f"up to seed {seed}: {kernels} fused places, {findings} findings", flush=True)
        wrong = re.match(rf"{LEFT_OUT} .*?: output (\S+) ", problem or "")
        if wrong and original_errs(FOLDER / f"{seed}.onnx", wrong[1]):
            excused += 1
            print(f"seed {seed}: ONNX Runtime is off by itself; {problem}", flush=True)
        elif problem:
            findings += 1
            print(f"seed {seed}: {problem} (build/fuzz/{seed}.onnx)", flush=True)
        else:
            (FOLDER / f"{seed}.onnx").unlink()
        seed += 1
        if kernels >= options.regions:
            break
    print(f"seeds {options.seed} to {seed - 1}: {kernels} fused places, {findings} findings, {excused} of ORT's own")
    sys.exit(1 if findings else 0)
