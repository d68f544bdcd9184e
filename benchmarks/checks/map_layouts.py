"""Kernels of convolution networks at small shapes, compared with float64, for compute-sanitizer.

    python -m benchmarks.checks.map_layouts prepare DIR --arch sm_90                      on any machine, without a GPU
    compute-sanitizer --tool racecheck python -m benchmarks.checks.map_layouts run DIR    on the GPU machine: ORT, numpy

Depthwise convolutions, also behind a 1x1 convolution, image convolutions and group norms, as their tests draw them.
Inputs and results in float64 are computed by `prepare`, so that nothing but ONNX Runtime works under the sanitizer.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

import numpy as np

from benchmarks.support.arguments import command
from tests.support.wrong_bodies import with_wrong_bodies

_COUNT = 6  # random cases of each kind and dtype
_MODELS = "models.json"


def _cases(count: int) -> dict[str, Any]:
    """The cases by name."""
    from cases import depthwise as depthwise_models
    from cases import expanded_depthwise as expanded_models
    from cases import group_norm as group_norm_models
    from cases import image_convolution as image_convolution_models

    norm = group_norm_models.Case
    found: dict[str, Any] = {
        "norm_cluster": norm((1, 24, 20, 160), 32, "float16", "spelled", "time", "affine_silu", ones=True),
        "norm_odd": norm((1, 12, 10, 480), 32, "float16", "group", behind="residual"),
        "norm_single": norm((1, 40, 40, 32), 32, "float16", "instance", behind="affine"),
        "norm_split": norm((1, 20, 14, 512), 1, "float32", "group", behind="affine", known=False),
        "held_5x5": depthwise_models.Case((1, 28, 28, 24), (5, 5), pads=(2, 2, 2, 2), dtype="float16", behind="silu"),
        "held_7x7": depthwise_models.Case((1, 28, 28, 32), (7, 7), pads=(3, 3, 3, 3), dtype="float16"),
        "walking": depthwise_models.Case((1, 40, 40, 32), pads=(1, 1, 1, 1), dtype="float16", behind="silu"),
    }
    for dtype in ("float16", "float32"):
        for seed in range(1, count + 1):
            found[f"depthwise_{dtype}_{seed}"] = depthwise_models.random_case(seed, dtype)
            found[f"norm_{dtype}_{seed}"] = group_norm_models.random_case(seed, dtype)
    for seed in range(1, count + 1):
        found[f"expanded_{seed}"] = expanded_models.random_expanded(seed, "float16")
        found[f"image_{seed}"] = image_convolution_models.random_case(seed, "float16")
    for seed, case in enumerate(image_convolution_models.IN_FRONT[:count]):
        found[f"image_behind_{seed}"] = case
    return found


def prepare(folder: pathlib.Path, arch: str, count: int) -> None:
    """Write every case's model, inputs and result, and one library with the kernels."""
    import onnx

    from benchmarks.support.collection import Collection
    from cases import depthwise as depthwise_models
    from cases import group_norm as group_norm_models
    from cases import image_convolution as image_convolution_models

    folder.mkdir(parents=True)
    collection, rows = Collection(), {}
    for name, case in _cases(count).items():
        family = name.partition("_")[0]
        of = {"norm": group_norm_models, "image": image_convolution_models}.get(family, depthwise_models)
        fused = of.fused(case)
        names = {kernel.name: collection.add(kernel) for kernel in fused.kernels}
        optimized = with_wrong_bodies(fused.optimized)
        for node in optimized.graph.node:
            node.op_type = names.get(node.op_type, node.op_type)
        onnx.save(optimized, folder / f"{name}.onnx")
        feeds = case.feeds()
        with np.errstate(all="ignore"):
            expected = np.asarray(case.expected(feeds), np.float32)
        np.savez_compressed(folder / f"{name}.npz", expected=expected, **feeds)
        rows[name] = case.limit()
    collection.write_library(folder, [arch])
    (folder / _MODELS).write_text(json.dumps(rows))
    print(f"{len(rows)} cases, {sum(p.stat().st_size for p in folder.iterdir()) / 1e6:.1f} MB")


def _error(folder: pathlib.Path, name: str, relative: float, absolute: float) -> float:
    """The largest difference from float64, as a multiple of what is allowed; infinite where only one is finite."""
    from benchmarks.support.gpu_timing import library, session

    arrays = dict(np.load(folder / f"{name}.npz"))
    expected = arrays.pop("expected")
    (y,) = session(str(folder / f"{name}.onnx"), library(folder), "cuda").run(["y"], arrays)
    finite = np.isfinite(expected)
    if y.shape != expected.shape or not np.array_equal(np.isfinite(y), finite):
        return np.inf
    apart = np.abs(y.astype(np.float64) - expected)[finite]
    return float(np.max(apart / (absolute + relative * np.abs(expected[finite])), initial=0.0))


def run(folder: pathlib.Path, args: argparse.Namespace) -> int:
    """Compare every case of this share; 0 if all agree."""
    first, step = map(int, args.share.split("/"))
    found: dict[str, Any] = {}
    for name, limit in list(json.loads((folder / _MODELS).read_text()).items())[first::step]:
        try:
            found[name] = round(_error(folder, name, *limit), 3)
        except Exception as error:  # noqa: BLE001 - the other cases are worth having
            found[name] = f"{type(error).__name__}: {str(error)[-200:]}"
        print(f"{name:32} {found[name]} of the tolerance", flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(found, indent=1))
    bad = [name for name, error in found.items() if isinstance(error, str) or not error <= 1]
    print(f"{len(found)} cases, {len(bad)} findings: {', '.join(bad)}")
    return 1 if bad else 0


def main() -> int:
    parser, (prepared, ran) = command(__doc__)
    prepared.add_argument("--count", type=int, default=_COUNT)
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every case")
    ran.add_argument("--share", default="0/1", help="K/N: every Nth from the Kth on, for several sanitizers at once")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.count)
        return 0
    return run(args.folder, args)


if __name__ == "__main__":
    raise SystemExit(main())
