"""Every entry point of running totals at a small shape, compared with exact sums, also for compute-sanitizer.

python -m benchmarks.checks.scan_layouts prepare DIR --arch sm_90                              without a GPU
compute-sanitizer --tool racecheck python -m benchmarks.checks.scan_layouts run DIR --only float16   on the GPU machine
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import onnx
import torch

from benchmarks.kernels.scan import calling
from benchmarks.support.arguments import add_device_and_out, command
from benchmarks.support.gpu_timing import bound, library, poisoned, session

# Rows that each layout takes, in the widest and the narrowest dtype.
_DENSE = ((24, 29), (24, 30), (24, 40), (24, 64), (24, 1021), (40, 2048), (5, 20011), (3, 32768), (3, 140_003))
_STRIDED = ((3, 77, 48), (2, 300, 48))
_EVERY = ("float32", "float16", "int64")  # dtypes of which all entry points are tried
_OTHERS = ("bfloat16", "float64", "int32", "uint32", "uint64")  # of which a few are
_FLAGS = ((0, 0), (0, 1), (1, 0), (1, 1))  # exclusive, reverse


@dataclasses.dataclass(frozen=True)
class Form:
    """One kernel, at shapes that have its rank: y = CumSum(x * g) + g, where g is the same for every row."""

    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    exclusive: int
    reverse: int

    @property
    def label(self) -> str:
        return f"{self.dtype}_{len(self.shapes[0])}_{self.exclusive}{self.reverse}"

    def model(self) -> onnx.ModelProto:
        text = {"float32": "float", "float64": "double"}.get(self.dtype, self.dtype)
        dims = ",".join(("N", "M", "48")[: len(self.shapes[0])])
        beside = ",".join(("1", "M", "48")[: len(self.shapes[0])])
        flags = f"exclusive = {self.exclusive}, reverse = {self.reverse}"
        return onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["" : 21]> g ({text}[{dims}] x, {text}[{beside}] g) => ({text}[{dims}] y) '
            f"<int64 axis = {{1}}> {{ a = Mul(x, g) c = CumSum<{flags}>(a, axis) y = Add(c, g) }}"
        )

    def inputs(self, shape: tuple[int, ...], device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Small integers, which every order of summing gives the same sum of; x has a NaN where it can."""
        generator = torch.Generator().manual_seed(sum(shape))
        dtype = getattr(torch, self.dtype)
        x = torch.randint(0 if self.dtype.startswith("u") else -1, 2, shape, generator=generator)
        g = torch.randint(0, 2, (1, *shape[1:]), generator=generator)
        if dtype.is_floating_point:
            x, g = x.to(dtype), g.to(dtype)
            x.view(-1)[x.numel() // 2] = float("nan")
        return x.to(device=device, dtype=dtype), g.to(device=device, dtype=dtype)

    def expected(self, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        """On the CPU in float64 or int64, where all sums are exact."""
        wide = torch.float64 if x.is_floating_point() else torch.int64
        a, g = x.cpu().to(wide) * g.cpu().to(wide), g.cpu().to(wide)
        a = a.flip(1) if self.reverse else a
        total = a.cumsum(1)
        if self.exclusive:
            total = torch.cat([torch.zeros_like(a[:, :1]), total[:, :-1]], 1)
        total = total.flip(1) if self.reverse else total
        return (total + g).to(x.dtype)


def forms() -> Iterator[Form]:
    for k, dtype in enumerate((*_EVERY, *_OTHERS)):
        for flags in _FLAGS if k == 0 else (_FLAGS[k % 4],):
            yield Form(dtype, _DENSE, *flags)
        if dtype in _EVERY:
            yield Form(dtype, _STRIDED, *_FLAGS[(k + 1) % 4])
            yield Form(dtype, _STRIDED, *_FLAGS[(k + 2) % 4])


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Write every form's model, calling a kernel of one entry point, once for each; and one library."""
    from benchmarks.support.collection import Collection

    folder.mkdir(parents=True)
    collection, made, used = Collection(), {}, {}
    for form in forms():
        optimized, _ = collection.optimize(form.model())
        (node,) = optimized.graph.node
        names = _one_each(collection.kernels[node.op_type], every=form.dtype in _EVERY)
        for name in names:
            onnx.save(calling(optimized, name), folder / f"{form.label}.{name}.onnx")
        made[form.label] = {name: kernel.variants[0].symbol.removeprefix(name) for name, kernel in names.items()}
        used |= names
    collection.kernels = used
    (folder / "entries.json").write_text(json.dumps(made))
    print(sum(map(len, made.values())), "entry points", flush=True)
    collection.write_library(folder, [arch])


def _one_each(kernel: Any, every: bool) -> dict[str, Any]:
    """The kernel with one entry point (a split one: both launches) for each of them, or for every third, by name."""
    made = {}
    for k, variant in enumerate(kernel.variants):
        if variant.launch > 0 or not (every or k % 3 == 2):
            continue
        name = f"{kernel.name}_{k}"
        chosen = [v for v in kernel.variants[k : k + 2] if v is variant or v.launch > 0]
        renamed = tuple(dataclasses.replace(v, symbol=v.symbol.replace(kernel.name, name, 1)) for v in chosen)
        made[name] = dataclasses.replace(kernel, name=name, variants=renamed)
    return made


def run(folder: pathlib.Path, device: str, only: str) -> int:
    """Compare every entry point at all shapes that it takes; 0 if all agree."""
    entries = json.loads((folder / "entries.json").read_text())
    runs, bad, never, used = 0, [], [], set()
    for form in (f for f in forms() if any(part in f.label for part in only.split(","))):
        for name, entry in entries[form.label].items():
            opened = session(str(folder / f"{form.label}.{name}.onnx"), library(folder), device)
            for shape in form.shapes:
                x, g = form.inputs(shape, device)
                y = poisoned(shape, x.dtype, device)
                if device != "cpu":
                    torch.cuda.synchronize()
                try:
                    bound(opened, {"x": x, "g": g}, {"y": y})()
                except Exception as error:  # noqa: BLE001 - an entry point that does not take these rows, or a finding
                    if "no variant fits" not in str(error):
                        bad.append(f"{form.label} {entry} {shape}: {str(error)[-200:]}")
                    continue
                runs += 1
                used.add(name)
                if not torch.equal(y.cpu().nan_to_num(99), form.expected(x, g).nan_to_num(99)):
                    bad.append(f"{form.label} {entry} {shape}")
        never += [f"{form.label} {e}" for name, e in entries[form.label].items() if name not in used]
    print(f"{runs} runs of {len(used)} entry points, {len(bad)} findings", *bad, f"never run: {never}", sep="\n")
    return 1 if bad else 0


def main() -> int:
    parser, (_, ran) = command(__doc__)
    add_device_and_out(ran)
    ran.add_argument("--only", default="", help="comma-separated parts of labels, such as float32_2")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
        return 0
    return run(args.folder, args.device, args.only)


if __name__ == "__main__":
    sys.exit(main())
