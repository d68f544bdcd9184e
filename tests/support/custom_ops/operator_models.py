"""One model a dtype with every use of every row of the operator table, its fused form, inputs, and float64 results."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnx.reference import ReferenceEvaluator

from cases.models import fuse, outline
from onnxopt.fusion import cost
from onnxopt.fusion.region import Kernel
from onnxopt.program.dtypes import DTYPES, to_ir
from onnxopt.program.operators import table as operators
from onnxopt.program.operators.elementwise import Operator
from onnxopt.runtime import sessions
from tests.support.fusing import cpu_kernels_forced
from tests.support.wrong_bodies import failing_nodes, read_by_casts

OPSET = 24
SHAPE = (3, 67)  # odd, so that vectors have a tail


@dataclasses.dataclass(frozen=True)
class Use:
    """One operator with one attribute set; its inputs are f"{name}_x{k}", its output f"{name}_y"."""

    name: str
    row: Operator
    attributes: Mapping[str, Any]
    dtypes: tuple[str, ...]

    def node(self) -> onnx.NodeProto:
        inputs = [f"{self.name}_x{k}" for k in range(len(self.dtypes))]
        return helper.make_node(
            self.row.name, inputs, [f"{self.name}_v"], domain=self.row.domain, name=self.name, **self.attributes
        )

    def result(self) -> ir.DataType:
        """The dtype of the result, as the row says."""
        dtype = self.row.result([to_ir(d) for d in self.dtypes], self.attributes)
        assert dtype is not None, self.name
        return dtype

    def feeds(self) -> dict[str, np.ndarray]:
        """Inputs in the row's sample range; divisors, shifts and bounds of integers stay in what ONNX defines."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return {f"{self.name}_x{k}": self._draw(rng, d, k) for k, d in enumerate(self.dtypes)}

    def _draw(self, rng: np.random.Generator, dtype: str, position: int) -> np.ndarray:
        low, high = self.row.samples
        kind = DTYPES[dtype].kind
        if kind == "bool":
            return rng.integers(0, 2, SHAPE).astype(bool)
        values = rng.uniform(low, high, SHAPE) if kind == "float" else rng.integers(max(low, -9), max(high, 9), SHAPE)
        if kind == "unsigned":
            values = np.abs(values)
        if position and kind != "float":
            values = np.where(values == 0, 1, values)  # a divisor of 0 is not defined
        return values.astype(numpy_dtype(dtype))


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(to_ir(name).numpy())


def uses(dtype: str) -> Iterator[Use]:
    """Every row that takes `dtype`, with each of its attribute sets that the operator allows for it."""
    for row in operators.OPERATORS.values():
        yield from uses_of(row, dtype)


def uses_of(row: Operator, dtype: str) -> Iterator[Use]:
    """The uses of one row whose usual operands have `dtype`; one more where operands may be of different kinds."""
    usual = row.sample_dtypes(dtype)
    mixed = list(usual)
    for position, operand in row.operands.items():
        others = (d for d in DTYPES if d in (operand.dtypes or ()) and DTYPES[d].kind != DTYPES[dtype].kind)
        mixed[position] = next(others, usual[position])
    name = "_".join((*row.domain.split(".")[1:], row.name))  # two domains may have operators of one name
    for k, attributes in enumerate(row.attributes):
        if dtype in row.allowed(attributes):
            yield Use(f"{name}_{k}", row, attributes, usual)
    if dtype in row.allowed(row.attributes[0]) and tuple(mixed) != usual:
        yield Use(f"{name}_mixed", row, row.attributes[0], tuple(mixed))


def model(chosen: list[Use]) -> ir.Model:
    """A graph in which every use is followed by an Identity, so that the two become a region."""
    nodes, inputs, outputs = [], [], []
    for use in chosen:
        nodes += [use.node(), helper.make_node("Identity", [f"{use.name}_v"], [f"{use.name}_y"], f"{use.name}_i")]
        shapes = [() if use.row.operand(k).scalar else SHAPE for k in range(len(use.dtypes))]
        inputs += [
            helper.make_tensor_value_info(f"{use.name}_x{k}", int(to_ir(d)), shape)
            for k, (d, shape) in enumerate(zip(use.dtypes, shapes, strict=True))
        ]
        outputs.append(helper.make_tensor_value_info(f"{use.name}_y", int(use.result()), SHAPE))
    graph = helper.make_graph(nodes, "operators", inputs, outputs)
    domains = {use.row.domain for use in chosen if use.row.domain}
    imports = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def fused(chosen: list[Use]) -> tuple[ir.Model, tuple[Kernel, ...]]:
    """The model with every use outlined; asserts that none was left out."""
    built = model(chosen)
    with mock.patch.object(cost, "TINY_BYTES", 0):  # each use is a region of its own
        plan = fuse(built)
    assert len(plan.regions) == len(chosen), plan.refusals
    with cpu_kernels_forced():
        return built, outline(built, plan)


def expected(use: Use, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """The reference on the same numbers, floats in float64 so that only our rounding is judged.

    The reference is onnx's reference evaluator, or the row's own for an operator of another domain.
    """
    wide = {
        name: array.astype(np.float64) if DTYPES[d].kind == "float" else array
        for (name, array), d in zip(feeds.items(), use.dtypes, strict=True)
    }
    if use.row.reference is not None:
        with np.errstate(all="ignore"):
            return np.asarray(use.row.reference(*wide.values(), **use.attributes))
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in wide.items()
    ]
    graph = helper.make_graph([use.node()], "one", inputs, [onnx.ValueInfoProto(name=f"{use.name}_v")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(proto).run(None, wide)[0])


def build(chosen: list[Use], folder: Path, archs: Sequence[str]) -> None:
    """Write the fused model of these uses and its library, with kernels for `archs` (none: CPU only), into `folder`."""
    from onnxopt.artifact.folder import write_library
    from onnxopt.codegen import kernels_json
    from onnxopt.codegen.generate import generate
    from onnxopt.codegen.nvrtc import compile_cuda

    fused_model, kernels = fused(chosen)
    proto = ir.to_proto(fused_model)
    for function in proto.functions:  # rows take dtypes that ONNX's operators do not, so bodies would be no valid ones
        (dtype,) = next(k.program.outputs for k in kernels if k.name == function.name)
        failing = failing_nodes(function.input[0], {function.output[0]: dtype})
        del function.node[:]
        function.node.extend([*read_by_casts(function.input), *failing])
    onnx.save(proto, folder / "model.onnx")
    fatbin = compile_cuda(generate(kernels), archs) if archs else None
    write_library(folder / "lib", kernels_json.to_json(kernels, fatbin), fatbin)


def disagreements(chosen: list[Use], folder: Path, provider: str) -> dict[str, float]:
    """Uses whose fused kernel, built into `folder`, misses its row's limit on a provider, with the distance in ulp."""
    library = folder / "lib" / "libonnxopt_ops.so"
    session = sessions.open_session(folder / "model.onnx", library=library, provider=provider)
    shapes = {i.name: i.shape for i in session.get_inputs()}
    feeds = {name: array for use in chosen for name, array in use.feeds().items()}
    feeds = {name: array if shapes[name] else np.asarray(array[0, 0]) for name, array in feeds.items()}
    found = sessions.run(session, feeds)
    distances = {
        use.name: ulp_distance(found[f"{use.name}_y"], expected(use, {name: feeds[name] for name in use.feeds()}))
        for use in chosen
    }
    return {use.name: distances[use.name] for use in chosen if not distances[use.name] <= use.row.ulp}


def ulp_distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest |found - wanted| in units of the last place, in found's dtype, of `wanted` or of 1 if that is larger.

    Results below 1 may come from sums that cancel, whose error is that of their terms. float64 is judged as float32,
    because the reference evaluator holds erf and the constants of function bodies in it. Integers: 0 or infinity.
    """
    if found.dtype.kind not in "fV" and found.dtype != ml_dtypes.bfloat16:
        return 0.0 if np.array_equal(found, wanted.astype(found.dtype)) else float("inf")
    epsilon = float(ml_dtypes.finfo(np.float32 if found.dtype == np.float64 else found.dtype).eps)
    with np.errstate(all="ignore"):
        spacing = np.exp2(np.floor(np.log2(np.maximum(np.abs(wanted), 1.0)))) * epsilon
        distance = np.abs(found.astype(np.float64) - wanted) / spacing
    same = (np.isnan(found) & np.isnan(wanted)) | (found.astype(np.float64) == wanted)
    return float(np.max(np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance)), initial=0.0))
