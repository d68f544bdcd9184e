"""A respelled network against the usual one: results, results of its artifact, and launches."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx_ir.passes import common

from onnxopt.graph import read
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.shapes.infer import infer
from onnxopt.pipeline import flow
from tests.fuzz.respell import activations, arithmetic, contrib, networks, products, views  # noqa: F401  (they fill the table)
from tests.fuzz.respell.networks import NETWORKS, Options, network
from tests.fuzz.respell.spelling import ANY, Site, apply, sites

_VIEWS = frozenset({"Reshape", "Flatten", "Unsqueeze", "Squeeze", "Shape", "Constant", "Identity"})
_DTYPES = {"tensor(float16)": np.float16, "tensor(float)": np.float32}
_LIMIT = {ir.DataType.FLOAT: 1e-4, ir.DataType.FLOAT16: 2e-2}  # of an output's root mean square
_SIZES = {"b": 3, "s": 5, "p": 6, "p + 1": 7}
_MAX_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Result:
    """problem: "" where nothing is wrong. spellings: names of what was applied. launches: usual and respelled."""

    problem: str
    network: str
    spellings: tuple[str, ...]
    launches: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def case(seed: int) -> tuple[str, Options, random.Random]:
    """The network of a seed, and the source of its spellings."""
    rng = random.Random(seed)
    return rng.choice(sorted(NETWORKS)), networks.options(rng), rng


def respelled(name: str, options: Options, rng: random.Random) -> tuple[ir.Model, tuple[str, ...]]:
    """A network with some of its parts spelled in other ways, and the names of the spellings.

    Spellings are drawn by name, so that one for few operators is as frequent as one for all. Half of them are applied
    wherever they apply, as an exporter would do it.
    """
    model, done = network(name, options), []
    for _ in range(rng.randint(1, _MAX_STEPS)):
        _infer(model)
        by_name: dict[str, list[Site]] = {}
        for site in sites(model):
            by_name.setdefault(site.spelling.name, []).append(site)
        names = sorted(by_name)
        rng.shuffle(names)
        everywhere = rng.random() < 0.5
        for spelling in names:
            places = by_name[spelling]
            rng.shuffle(places)
            applied = 0
            for site in places:
                applied += site.node.graph is not None and apply(site, rng)
                if applied and (site.spelling.op_type == ANY or not everywhere):
                    break
                if applied:
                    _infer(model)
            if applied:
                done.append(f"{spelling} x {applied}")
                break
    _infer(model)
    return model, tuple(done)


def _infer(model: ir.Model) -> None:
    common.RemoveUnusedNodesPass()(model)
    UniqueNamesPass()(model)
    with read.quiet():
        infer(model).write()


def examine(seed: int, folder: Path) -> Result:
    """Respell the network of a seed; the respelled model is written to SEED.onnx in `folder`, and stays there."""
    name, options, rng = case(seed)
    model, spellings = respelled(name, options, rng)
    path = folder / f"{seed}.onnx"
    ir.save(model, path)
    return compare(name, options, path, spellings)


def compare(name: str, options: Options, path: Path, spellings: tuple[str, ...]) -> Result:
    usual = _usual(name, options)
    try:
        given = _run(path)
    except Exception as error:  # noqa: BLE001  (ORT's errors have no common class)
        return Result(f"the spelling is no model: {error}", name, spellings)
    limit = _LIMIT[options.dtype]
    if off := _disagree(usual.outputs, given, limit):
        return Result(f"the spelling is not equal: {off}", name, spellings)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            flow.optimize(path, Path(scratch) / "artifact", archs=(), verify=False)
            found, outputs = launches(Path(scratch) / "artifact"), _run(Path(scratch) / "artifact" / "model.onnx", True)
        except Exception as error:  # noqa: BLE001  (any error at all is a finding)
            return Result(f"{type(error).__name__}: {error}", name, spellings)
    if off := _disagree(given, outputs, limit):
        return Result(f"the artifact disagrees: {off}", name, spellings, (usual.launches, found))
    problem = "" if len(found) == len(usual.launches) else f"{len(usual.launches)} launches, respelled {len(found)}"
    return Result(problem, name, spellings, (usual.launches, found))


@dataclasses.dataclass(frozen=True)
class Usual:
    outputs: tuple[np.ndarray, ...]
    launches: tuple[str, ...]


@functools.cache
def _usual(name: str, options: Options) -> Usual:
    """The outputs of a network in its usual spelling, and the launches of its artifact."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        model = network(name, options)
        _infer(model)
        ir.save(model, path)
        flow.optimize(path, Path(scratch) / "artifact", archs=(), verify=False)
        return Usual(_run(path), launches(Path(scratch) / "artifact"))


def launches(artifact: Path) -> tuple[str, ...]:
    """What a session launches: the operators of the graph, each function by its nodes, without views.

    ONNX Runtime's Attention is a product and an attention.
    """
    model = onnx.load(artifact / "model.onnx")
    bodies = {f.name: "+".join(n.op_type for n in f.node if n.op_type != "Constant") for f in model.functions}
    found = [bodies.get(n.op_type, n.op_type) for n in model.graph.node if n.op_type not in _VIEWS]
    return tuple(itertools.chain.from_iterable(("MatMul", name) if name == "Attention" else (name,) for name in found))


def _run(path: Path, library: bool = False) -> tuple[np.ndarray, ...]:
    options = ort.SessionOptions()
    if library:
        file = path.parent / "lib" / "libonnxopt_ops.so"  # is not there where nothing was fused
        if file.exists():
            options.register_custom_ops_library(str(file))
    else:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds, draw = {}, np.random.default_rng(7)
    for value in session.get_inputs():
        dims = [_SIZES[d] if isinstance(d, str) else d for d in value.shape]
        drawn = draw.standard_normal(dims)
        feeds[value.name] = drawn > 0 if value.type == "tensor(bool)" else drawn.astype(_DTYPES[value.type])
    return tuple(session.run(None, feeds))


def _disagree(one: Sequence[np.ndarray], other: Sequence[np.ndarray], limit: float) -> str:
    """Where outputs differ by more than `limit` of their root mean square, or ""."""
    for k, (a, b) in enumerate(zip(one, other, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {k} is {a.dtype}{a.shape} and {b.dtype}{b.shape}"
        wide = a.astype(np.float64)
        error, rms = np.abs(wide - b.astype(np.float64)).max(), float(np.sqrt(np.square(wide).mean()))
        if not error <= limit * rms:
            return f"output {k} differs by {error:.2g}, its root mean square is {rms:.2g}"
    return ""
