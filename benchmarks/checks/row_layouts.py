"""Every layout of rowwise kernels at a small shape, compared with float64, for compute-sanitizer.

    python -m benchmarks.checks.row_layouts prepare DIR --arch sm_90                      on any machine, without a GPU
    compute-sanitizer --tool racecheck python -m benchmarks.checks.row_layouts run DIR    on the GPU machine

Each shape is the smallest at which a layout still does everything that it can do: a block that continues with a second
row, a cluster, a row in several parts. The sizes of tensors are multiples of 16 bytes; initcheck would report the
padding behind other tensors.
"""

from __future__ import annotations

import pathlib
import sys

import onnx

from benchmarks.cases.rows import RowCase
from benchmarks.kernels.rows import Measured
from benchmarks.support.arguments import add_device_and_out, command

# case; layout, vector, unroll, lanes, threads, cluster, resident, keeps, depth. None: as launch_shapes.py chooses.
_LAYOUTS = (
    (RowCase("layernorm", "float16", (37, 96)), None),
    (RowCase("residual_layernorm", "float32", (40, 1024)), ("held", 4, 1, 256, 256, 1, 0)),
    (RowCase("masked_softmax", "float16", (2, 3, 16, 197), (2, 1, 16, 197)), None),
    (RowCase("layernorm", "bfloat16", (24, 1021)), ("ragged", 8, 2, 128, 128, 1, 0)),
    (RowCase("silu_mean_hw", "float16", (2, 32, 7, 7)), None),
    (RowCase("groupnorm_silu", "float16", (2, 64, 8, 8)), None),
    (RowCase("residual_rmsnorm", "float32", (300, 2048)), ("piped", 4, 2, 256, 256, 1, 2)),
    (RowCase("layernorm", "float16", (80, 16384)), ("piped", 8, 2, 1024, 512, 2, 1)),
    (RowCase("masked_softmax", "float16", (20, 32768)), ("piped", 8, 2, 2048, 256, 8, 1)),
    (RowCase("rmsnorm", "float32", (20, 65536)), ("piped", 4, 1, 16384, 1024, 16, 1)),
    (RowCase("residual_layernorm", "float16", (300, 4096)), ("ring", 8, 2, 256, 256, 1, 2, True, 1)),
    (RowCase("layernorm", "float32", (210, 8192)), ("ring", 4, 2, 1024, 512, 2, 1, True, 2)),
    (RowCase("softmax", "float16", (20, 32768)), ("ring", 8, 1, 4096, 256, 16, 2, True, 1)),
    (RowCase("softmax", "float32", (20, 20000)), ("looped", 4, 4, 4096, 512, 8, 0)),
    (RowCase("layernorm", "float16", (6, 1003)), ("looped", 8, 4, 512, 512, 1, 0)),
    (RowCase("softmax", "float16", (3, 40000)), ("split", 8, 4, 512, 512, 1, 0)),
    (RowCase("residual_layernorm", "float32", (4, 30001)), ("split", 4, 4, 512, 512, 1, 0)),
    (RowCase("residual_layernorm", "float32", (3, 30003)), ("looped", 4, 4, 4096, 512, 8, 0)),
    (RowCase("softmax_channels", "float16", (2, 100, 8, 16)), ("strided", 4, 13, 8, 256, 1, 0)),
    (RowCase("softmax_channels", "float32", (2, 70, 9, 7)), ("strided", 1, 0, 8, 256, 1, 0)),
    (RowCase("softmax_channels", "float32", (2, 100, 9, 8)), ("strided", 1, 4, 32, 256, 1, 0)),
    (RowCase("layernorm", "bfloat16", (24, 2051)), ("ragged", 8, 5, 64, 64, 1, 0)),
)


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Write every case's model, and one library with the kernels."""
    from benchmarks.cases.row_sweep import with_shape
    from benchmarks.support.collection import Collection
    from onnxopt.kinds.rowwise.launch_shapes import RowShape

    folder.mkdir(parents=True)
    collection = Collection()
    for case, shape in _LAYOUTS:
        optimized, _ = collection.optimize(case.model())
        if shape is not None:
            optimized = with_shape(collection, optimized, case, RowShape(*shape))
        onnx.save(optimized, folder / f"{case.name}.optimized.onnx")
    used = {onnx.load(path).graph.node[0].op_type for path in folder.glob("*.onnx")}
    collection.kernels = {name: kernel for name, kernel in collection.kernels.items() if name in used}
    collection.write_library(folder, [arch])


def run(folder: pathlib.Path, device: str, share: str) -> int:
    """Compare every case of this share; 0 if all agree."""
    bad = 0
    first, step = map(int, share.split("/"))
    layouts = _LAYOUTS[first::step]
    for case, shape in layouts:
        error = Measured(case, folder, device).error(".optimized")
        bad += not error <= 1
        print(f"{case.name:48} {shape[0] if shape else 'chosen':8} {error:.3f} of the tolerance", flush=True)
    print(f"{len(layouts)} layouts, {bad} findings")
    return 1 if bad else 0


def main() -> int:
    parser, (_, ran) = command(__doc__)
    add_device_and_out(ran)
    ran.add_argument("--share", default="0/1", help="K/N: every Nth from the Kth on, for several sanitizers at once")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
        return 0
    return run(args.folder, args.device, args.share)


if __name__ == "__main__":
    sys.exit(main())
