"""Random graphs for checks.random_graphs: they are drawn, optimized and packed into models, with their inputs."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tests.support.wrong_bodies import with_wrong_bodies

SIZES = (3, 1, 8, 0, 13)  # of every symbolic dim, in turn
_FLOATS = ("float32", "float16", "bfloat16")
_MAX = 12  # operators of a graph
_PACKED = 40  # graphs of one model
_SPECIAL = 0.04  # of the elements of an input
_ON_CUDA_IN_BFLOAT16 = frozenset({"Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_FAILS_ON_EMPTY = frozenset({"Shrink", "Sum", "Min", "Max", "Mean"})  # ONNX Runtime's own kernels on CUDA, 1.31
_NAMES = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 16: "bfloat16"}


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One graph before, widened to float32, and after.

    inputs, outputs: name -> dtype; of the outputs those that kernels have part in.
    """

    before: onnx.ModelProto
    after: onnx.ModelProto
    regions: int
    inputs: dict[str, str]
    outputs: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Packed:
    """Many graphs as one model. dims: of every input, symbolic ones None."""

    before: bytes
    after: bytes
    regions: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    dims: dict[str, list[int | None]]
    plain: frozenset[str]  # inputs of graphs that turn floats into integers, which of NaN make anything


@dataclasses.dataclass(frozen=True)
class Feeds:
    """The same values for both models: 16-bit floats are float32 in the reference; bfloat16 is in both."""

    reference: dict[str, np.ndarray]
    fused: dict[str, np.ndarray]


def draw(seed: int, collection: Any) -> Drawn | None:
    """The graph of this seed, None where nothing is fused or ONNX Runtime lacks a kernel for what is left."""
    from tests.fuzz.graphs import Graph

    dtype = _FLOATS[seed % len(_FLOATS)]
    return optimized(Graph(seed, floats=(dtype,), most=_MAX).model(), dtype, collection)


def of_every_kind() -> Iterator[tuple[onnx.ModelProto, str]]:
    """Small models that take an entry point of every kind, with their dtype.

    Tiled, interleaved, gathered, guarded and plain ones.
    """
    from tests.kinds.pointwise.test_emulated import CASES

    plain = {
        "contiguous": ("float[5, 7, 64] x, float[5, 7, 64] z", "a = Add(x, z)  y = Relu(a)", ""),
        "odd": ("float[3, 7, 61] x, float[61] z", "a = Add(x, z)  y = Tanh(a)", ""),
        "row": ("float[33, 64] x, float[64] z", "a = Add(x, z)  y = Relu(a)", ""),
        "channel": ("float[2, 5, 8, 8] x, float[5, 1, 1] z", "a = Mul(x, z)  y = Relu(a)", ""),
        "channel_odd": ("float[2, 5, 7, 9] x, float[5, 1, 1] z", "a = Mul(x, z)  y = Relu(a)", ""),
        "mask": ("float[3, 4, 8, 16] x, float[3, 1, 8, 16] z", "a = Add(x, z)  y = Relu(a)", ""),
        "mask_odd": ("float[3, 4, 5, 17] x, float[3, 1, 1, 17] z", "a = Add(x, z)  y = Relu(a)", ""),
        "short_rows": ("float[9, 11, 3] x, float[9, 1, 3] z", "a = Add(x, z)  y = Relu(a)", ""),
        "dynamic": ("float[N, M, 16] x, float[M, 1] z", "a = Add(x, z)  y = Relu(a)", ""),
        "dynamic_rows": (
            "float[N, M, 41, 24] x, float[M, 41] z",
            "t = Transpose<perm=[0,3,1,2]>(x)  y = Add(t, z)",
            "",
        ),
        "dynamic_columns": (
            "float[N, 72, M, 41] x, float[72] z",
            "t = Transpose<perm=[0,2,3,1]>(x)  y = Add(t, z)",
            "",
        ),
        "long_images": (
            "float[2, 14, 14, 69] x, float[69, 1, 1] z",
            "t = Transpose<perm=[0,3,1,2]>(x)  y = Add(t, z)",
            "",
        ),
    }
    for inputs, body, constants, *_ in (*CASES.values(), *plain.values()):
        if "float[" not in inputs:
            continue
        for name, dtype in (("float[", "float32"), ("float16[", "float16"), ("bfloat16[", "bfloat16")):
            text = f'<ir_version: 9, opset_import: ["" : 20]> g ({inputs}) => (float[] y) <{constants}> {{ {body} }}'
            yield _with_output_dims(onnx.parser.parse_model(text.replace("float[", name))), dtype


def _with_output_dims(model: onnx.ModelProto) -> onnx.ModelProto:
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def optimized(model: onnx.ModelProto, dtype: str, collection: Any) -> Drawn | None:
    """The model before and after; its kernels join the collection. None as for `draw`."""
    try:
        before = _widened(model)
        ort.InferenceSession(before.SerializeToString(), providers=["CPUExecutionProvider"])
        trial = type(collection)()
        after, plan = trial.optimize(model)
    except Exception as error:  # noqa: BLE001 - ORT's CPU provider lacks kernels for some dtypes
        print(str(error)[:120], flush=True)
        return None
    left = {n.op_type for n in after.graph.node if n.domain != "onnxopt"}
    if dtype != "float32" and any(n.op_type == "Mod" for n in model.graph.node):
        return None  # jumps, where a rounding to 16 bits goes the other way
    if _FAILS_ON_EMPTY & left:
        return None
    if not plan.regions or (dtype == "bfloat16" and left - _ON_CUDA_IN_BFLOAT16):
        return None
    for kernel in trial.kernels.values():
        collection._add(kernel)
    inputs, outputs = (
        {v.name: _NAMES[v.type.tensor_type.elem_type] for v in rows} for rows in (model.graph.input, model.graph.output)
    )
    after = with_wrong_bodies(after)
    _with_float32_outside(after)
    behind = behind_kernels(after)
    outputs = {name: dtype for name, dtype in outputs.items() if name in behind}
    drawn = Drawn(before, after, len(plan.regions), inputs, outputs)
    return drawn if _runs_at_all_sizes(drawn) else None


def behind_kernels(model: onnx.ModelProto) -> set[str]:
    """Values that a fused kernel has part in; the others are ONNX Runtime's alone."""
    found: set[str] = set()
    for node in model.graph.node:
        if node.domain == "onnxopt" or found & set(node.input):
            found |= set(node.output)
    return found


def _runs_at_all_sizes(drawn: Drawn) -> bool:
    """Whether the unchanged graph does: a Reshape to -1 may mean nothing for a tensor of no elements."""
    (one,) = packed([drawn])
    session = ort.InferenceSession(one.before, providers=["CPUExecutionProvider"])
    try:
        for number in range(len(SIZES)):
            session.run(None, feeds(one, number).reference)
    except ort.capi.onnxruntime_pybind11_state.Fail:
        return False
    return True


def _widened(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxopt.verification.rounding import widening

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        onnx.save(model, folder / "model.onnx")
        (folder / "wide").mkdir()
        return onnx.load(widening.widen(folder / "model.onnx", folder / "wide"))


def _with_float32_outside(model: onnx.ModelProto) -> None:
    """Casts at inputs and outputs of bfloat16, which numpy does not have; they stay apart from the kernels."""
    graph, first, last = model.graph, [], []
    for value in (v for v in graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16):
        first.append(onnx.helper.make_node("Cast", [value.name], [f"{value.name}_in"], to=onnx.TensorProto.BFLOAT16))
        for node in graph.node:
            node.input[:] = [f"{value.name}_in" if i == value.name else i for i in node.input]
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for value in (v for v in graph.output if v.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16):
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [f"{value.name}_out" if i == value.name else i for i in names]
        last.append(onnx.helper.make_node("Cast", [f"{value.name}_out"], [value.name], to=onnx.TensorProto.FLOAT))
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    nodes = [*first, *graph.node, *last]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)


def packed(drawn: Sequence[Drawn]) -> list[Packed]:
    """The graphs, some to a model; names of graph k begin with "gk_"."""
    found = []
    for first in range(0, len(drawn), _PACKED):
        part = list(enumerate(drawn[first : first + _PACKED], start=first))
        models = [_joined([(k, d.before) for k, d in part]), _joined([(k, d.after) for k, d in part])]
        dims = {
            v.name: [d.dim_value if d.HasField("dim_value") else None for d in v.type.tensor_type.shape.dim]
            for v in models[0].graph.input
        }
        found.append(
            Packed(
                models[0].SerializeToString(),
                models[1].SerializeToString(),
                sum(d.regions for _, d in part),
                {f"g{k}_{n}": dtype for k, d in part for n, dtype in d.inputs.items()},
                {f"g{k}_{n}": dtype for k, d in part for n, dtype in d.outputs.items()},
                dims,
                frozenset(f"g{k}_{n}" for k, d in part if _makes_integers(d) for n in d.inputs),
            )
        )
    return found


def _makes_integers(drawn: Drawn) -> bool:
    casts = [onnx.helper.get_node_attr_value(n, "to") for n in drawn.before.graph.node if n.op_type == "Cast"]
    return any(_NAMES.get(to, "").startswith("int") for to in casts)


def _joined(models: Sequence[tuple[int, onnx.ModelProto]]) -> onnx.ModelProto:
    nodes: list[Any] = []
    inputs: list[Any] = []
    outputs: list[Any] = []
    initializers: list[Any] = []
    domains: dict[str, int] = {}
    for k, model in models:
        graph = onnx.compose.add_prefix_graph(model.graph, f"g{k}_")
        nodes += graph.node
        inputs += graph.input
        outputs += graph.output
        initializers += graph.initializer
        for entry in model.opset_import:
            if domains.setdefault(entry.domain, entry.version) != entry.version:
                raise ValueError(f"graph {k} has another opset of {entry.domain!r}")
    graph = onnx.helper.make_graph(nodes, "random", inputs, outputs, initializers)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def feeds(model: Packed, number: int) -> Feeds:
    """Seeded inputs of draw `number`."""
    rng = np.random.default_rng(number)
    reference, fused = {}, {}
    for name, dtype in model.inputs.items():
        dims = [SIZES[number] if d is None else d for d in model.dims[name]]
        drawn = _drawn(rng, dims, dtype, special=name not in model.plain)
        reference[name] = drawn.astype(np.float32) if dtype == "float16" else drawn
        fused[name] = drawn
    return Feeds(reference, fused)


def _drawn(rng: np.random.Generator, dims: list[int], dtype: str, special: bool) -> np.ndarray:
    if dtype == "bool":
        return np.asarray(rng.random(dims) < 0.5)
    if dtype.startswith("int"):
        array = np.asarray(rng.integers(-9, 10, dims)).astype(dtype)
        extremes: list[Any] = [np.iinfo(dtype).min, np.iinfo(dtype).max, 0, -1]
    else:
        array = np.asarray(rng.uniform(-3, 3, dims)).astype("float32" if dtype == "bfloat16" else dtype)
        tiny = {"float32": 1e-45, "float16": 6e-8, "bfloat16": 9.2e-41}[dtype]
        extremes = [np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny]
    if special:
        flat = array.reshape(-1)
        where = rng.random(flat.size) < _SPECIAL
        flat[where] = rng.choice(np.array(extremes, array.dtype), int(where.sum()))
    if dtype == "bfloat16":
        bits = array.view(np.uint32)
        array = np.where(np.isfinite(array), (bits + 0x8000) & 0xFFFF0000, bits).astype(np.uint32).view(np.float32)
    return array
