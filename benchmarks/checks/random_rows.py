"""Random rowwise graphs, with and without index operators, and every rowwise operator of the table.

    python -m benchmarks.checks.random_rows prepare DIR --count 600     on any machine, without a GPU
    python -m benchmarks.checks.random_rows run DIR                     on the GPU machine: nvcc too
    compute-sanitizer python -m benchmarks.checks.random_rows group ROOT --group 0

ROOT is DIR/rows.tar.xz, unpacked. The graphs are those of tests/fuzz/rows.py and index_rows.py, compared with the
unchanged graph in float32 on the CPU. The operators are those of test_row_operators.py in all dtypes, compared with
onnx's reference evaluator in float64. The length of a row decides which entry point runs, so every graph is a model of
its own. `run --device cpu` makes the comparisons with the CPU kernels.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

from benchmarks.checks.random_graphs import narrow_indices, open_session
from benchmarks.support import random_groups
from tests.support.wrong_bodies import with_wrong_bodies

_ARCHIVE = "rows.tar.xz"
_SIZES = (37, 1, 1028)  # of every symbolic dim, in turn
_INDEXED_SIZES = (5, 1, 64)
_EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One graph. before: the reference; after: what runs. limit: of a difference, relative and absolute.

    inputs: name -> (dims, dtype, least, greatest), symbolic dims None. precise: for onnx's reference evaluator.
    """

    name: str
    before: bytes
    after: bytes
    inputs: dict[str, tuple[list[int | None], str, float, float]]
    sizes: tuple[int, ...]
    limit: float
    precise: bool
    compared: tuple[str, ...]  # outputs that a kernel has part in; the others are ONNX Runtime's alone


def _random(seed: int, collection: Any) -> Drawn | None:
    """A graph of either kind in turn; None where nothing is fused or ONNX Runtime cannot run the original."""
    import onnxruntime as ort

    from benchmarks.cases.random_graphs import behind_kernels
    from tests.fuzz.index_rows import Graph as Indexed
    from tests.fuzz.rows import Graph

    graph: Any = Indexed(seed) if seed % 3 else Graph(seed)
    model = graph.model()
    reference = graph.model("float32") if seed % 3 else model
    try:
        ort.InferenceSession(reference.SerializeToString(), providers=["CPUExecutionProvider"])
        optimized, plan = collection.optimize(model)
    except Exception as error:  # noqa: BLE001 - ORT's CPU provider lacks kernels for some dtypes
        print(f"seed {seed}: {str(error)[:120]}", flush=True)
        return None
    made = behind_kernels(optimized)
    compared = tuple(v.name for v in optimized.graph.output if v.name in made)
    if not compared or not any(r.kind.name == "rowwise" for r in plan.regions):
        return None
    optimized = with_wrong_bodies(optimized)
    kinds = {1: "float32", 9: "bool", 10: "float16"}
    inputs = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        inputs[value.name] = (dims, kinds[tensor.elem_type], -3.0, 3.0)
    limit = 3e-2 if any(i[1] == "float16" for i in inputs.values()) else 1e-4
    sizes = _INDEXED_SIZES if seed % 3 else _SIZES
    is_static = all(None not in i[0] for i in inputs.values())
    return Drawn(
        f"seed {seed}", reference.SerializeToString(), optimized.SerializeToString(), inputs,
        sizes[:1] if is_static else sizes, limit, precise=False, compared=compared,
    )  # fmt: skip


def _operators(collection: Any, stride: int) -> Iterator[Drawn]:
    """Every operator of the table, as its test has it, in the dtypes that CUDA kernels matter for."""
    from tests.program.test_row_operators import _IN_FLOAT32, _name, _uses

    uses = [u for u in _uses() if u.dtype in _EPSILON]
    for use in uses[::stride]:
        model = use.model(use.dtype)
        optimized, plan = collection.optimize(model)
        if not plan.regions:
            continue
        optimized = with_wrong_bodies(optimized)
        low, high = use.row.samples
        shapes = {"x": use.shape} | {f"p{k}": use.parameter_shape() for k in range(1, use.row.operands)}
        inputs: dict[str, tuple[list[int | None], str, float, float]] = {
            k: (list(s), use.dtype, low, high) for k, s in shapes.items()
        }
        epsilon = _EPSILON[use.dtype]
        step = use.row.ulp * (max(epsilon, _EPSILON["float32"]) if use.row.name in _IN_FLOAT32 else epsilon)
        # onnx's function of MeanVarianceNormalization has constants in float32: no float64 goes through it.
        precise = use.row.name != "MeanVarianceNormalization"
        reference = use.model("float64" if precise else "float32").SerializeToString()
        limit = 2 * step if precise else max(2 * step, 1e-4)
        yield Drawn(_name(use), reference, optimized.SerializeToString(), inputs, (0,), limit, precise, compared=("y",))


def _fewer(kernel: Any, most: int) -> Any:
    """With so many entry points for a length at most, and the last one, which takes any."""
    known = [v for v in kernel.variants if getattr(v, "columns", 0)]
    kept = (*known[:most], *kernel.variants[-1:]) if most and known else kernel.variants
    return dataclasses.replace(kernel, variants=tuple({v.symbol: v for v in kept}.values()))


def prepare(folder: pathlib.Path, count: int, groups: int, seed: int, most: int, stride: int) -> None:
    """Write the graphs before and after, and the source of their kernels, in groups. stride: between operators' uses;
    dtypes lie side by side, so every operator and shape stays where it is small."""
    from benchmarks.support.collection import Collection

    collections = [Collection() for _ in range(groups)]
    drawn: list[list[Drawn]] = [[] for _ in range(groups)]
    for k, use in enumerate(_operators(one := Collection(), stride)):
        drawn[k % groups].append(use)
        collections[k % groups].kernels |= one.kernels
        one.kernels.clear()
    total = operators = sum(map(len, drawn))
    while total < operators + count:
        found = _random(seed, collections[total % groups])
        if found is not None:
            drawn[total % groups].append(found)
            total += 1
        seed += 1
    with random_groups.packing(folder / _ARCHIVE) as root:
        for g in range(groups):
            kernels = [_fewer(narrow_indices(k), most) for k in collections[g].kernels.values()]
            random_groups.add(root / str(g), kernels, [dataclasses.asdict(d) for d in drawn[g]])
    kernels_made = sum(len(c.kernels) for c in collections)
    print(f"{count} graphs, {operators} operators, {kernels_made} kernels, next seed {seed}")


def _feeds(drawn: Drawn, draw: int) -> dict[str, np.ndarray]:
    """Float inputs as float32, already rounded to their own dtype."""
    import ml_dtypes

    rng, size = np.random.default_rng(draw), drawn.sizes[draw]
    feeds = {}
    for name, (dims, dtype, low, high) in drawn.inputs.items():
        shape = [size if d is None else d for d in dims]
        if dtype == "bool":
            feeds[name] = rng.random(shape) < 0.5
        else:
            narrow = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
            feeds[name] = rng.uniform(low, high, shape).astype(narrow).astype(np.float32)
    return feeds


def _expected(drawn: Drawn, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    if drawn.precise:
        wide = {k: v.astype(np.float64) for k, v in feeds.items()}
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(onnx.load_from_string(drawn.before)).run(list(drawn.compared), wide)
        return dict(zip(drawn.compared, found, strict=True))
    session = open_session(drawn.before, None, "cpu")
    names = [o.name for o in session.get_outputs()]
    found = session.run(names, {i.name: _as(feeds[i.name], i.type) for i in session.get_inputs()})
    return dict(zip(names, found, strict=True))


def _as(value: np.ndarray, kind: str) -> np.ndarray:
    return value.astype(np.float16) if kind == "tensor(float16)" else value


def _found(
    drawn: Drawn, feeds: dict[str, np.ndarray], expected: dict[str, np.ndarray], library: str, device: str
) -> dict[str, np.ndarray]:  # fmt: skip
    """The outputs, through torch tensors: numpy has no bfloat16. They begin as NaN, or as the least integer."""
    import torch

    from benchmarks.support.gpu_timing import bound, session

    kinds = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16, "tensor(bfloat16)": torch.bfloat16}
    kinds |= {"tensor(int64)": torch.int64, "tensor(bool)": torch.bool}
    run_in = session(drawn.after, library, device)
    inputs = {i.name: torch.from_numpy(feeds[i.name]).to(device, kinds[i.type]) for i in run_in.get_inputs()}
    outputs = {}
    for value in run_in.get_outputs():
        dtype = kinds[value.type]
        fill = float("nan") if dtype.is_floating_point else -(2**31)
        outputs[value.name] = torch.full(expected[value.name].shape, fill, dtype=dtype, device=device)
    if device == "cuda":
        torch.cuda.synchronize()
    bound(run_in, inputs, outputs)()
    return {k: (t.float() if t.is_floating_point() else t).cpu().numpy() for k, t in outputs.items()}


def _difference(found: np.ndarray, expected: np.ndarray, limit: float) -> float:
    if found.shape != expected.shape:
        return float("inf")
    if found.dtype.kind != "f":
        return 0.0 if np.array_equal(found, expected) else float("inf")
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    return float(np.max(np.abs(a[finite] - b[finite]) / (limit * (1 + np.abs(b[finite]))), initial=0.0))


def run_group(root: pathlib.Path, device: str, name: str) -> int:
    """Compile and compare one group; what it found goes into result.json of its folder."""
    group, library, graphs = random_groups.opened(root, name, device)
    result: dict[str, Any] = {"graphs": 0, "runs": 0, "findings": []}
    for drawn in (Drawn(**d) for d in graphs):
        result["graphs"] += 1
        try:
            for draw in range(len(drawn.sizes)):
                feeds = _feeds(drawn, draw)
                expected = _expected(drawn, feeds)
                found = _found(drawn, feeds, expected, library, device)
                worst = max(_difference(found[k], expected[k], drawn.limit) for k in drawn.compared)
                result["runs"] += 1
                if not worst <= 1:
                    result["findings"].append(f"{drawn.name}, draw {draw}: {worst:.3g} of the limit")
        except Exception as error:  # noqa: BLE001 - a graph that fails is a finding, not the end
            result["findings"].append(f"{drawn.name}: {type(error).__name__}: {str(error)[:300]}")
        (group / "result.json").write_text(json.dumps(result))
    print(f"group {name}: {result}"[:4000], flush=True)
    return 0


def _summary(results: list[dict[str, Any]]) -> str:
    graphs, runs = (sum(r[key] for r in results) for key in ("graphs", "runs"))
    return f"{graphs} graphs, {runs} runs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("prepare", "run", "group"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--group", nargs="*", default=[], help="which of the prepared groups")
    parser.add_argument("--variants", type=int, default=0, help="most entry points for a known length, 0: all")
    parser.add_argument("--stride", type=int, default=2, help="every so manyth use of an operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, help="JSON with what every group found")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.count, args.groups, args.seed, args.variants, args.stride)
        return 0
    if args.verb == "group":
        return run_group(args.folder, args.device, args.group[0])
    archive = args.folder / _ARCHIVE
    return random_groups.run(archive, "benchmarks.checks.random_rows", args.device, args.group, args.out, _summary)


if __name__ == "__main__":
    sys.exit(main())
