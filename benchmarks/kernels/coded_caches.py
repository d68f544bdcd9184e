"""One token's attention to a cache of 8-bit codes that grows, beside one of float16: correctness, and time.

    python -m benchmarks.kernels.coded_caches prepare DIR --arch sm_90     on any machine, without a GPU
    python -m benchmarks.kernels.coded_caches run DIR --out OUT.json       on the GPU machine: torch; about 15 s

Every case is compared with float64 first, and new codes with torch's. Several caches are used in rotation, so that they
come from memory. Each launch shape is timed.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from typing import Any

from benchmarks.kernels.products import Launches
from benchmarks.kernels.token_attention import _ROTATED, Params, Scales, cut, shared_bytes
from benchmarks.support.arguments import Rows, main_over_rows

CACHES = ("float16", "int8", "float8e4m3fn")
WIDTH, HEADS, GROUPS = 128, (2, 4), 8  # of queries that share keys; of keys
CASES = ((1, 512), (1, 4096), (4, 1024), (1, 32768), (16, 2048))  # sequences, tokens in the cache
_SCALE = 0.02
# Threads, stages (0: without tensor cores), blocks a multiprocessor that share the tokens.
SHAPES = {"float16": ((256, 0, 2), (128, 3, 1)), "int8": ((256, 0, 2), (256, 3, 1))}
SHAPES["float8e4m3fn"] = SHAPES["int8"]


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Compile the entry points of all caches."""
    from onnxopt.codegen import nvrtc
    from onnxopt.fusion.region import Kernel
    from onnxopt.kinds.attention import cuda
    from onnxopt.kinds.attention.kind import ATTENTION
    from onnxopt.program.attention import CacheCodes, TokenAttention

    folder.mkdir(parents=True)
    lines = ['#include "attention/cache_codes.cuh"', "namespace onnxopt {"]
    for cache in CACHES:
        for heads in HEADS:
            codes = None if cache == "float16" else CacheCodes(3, 4)
            inputs = ("float16", cache, cache, *(("float32", "float32") if codes else ()))
            meaning = TokenAttention(inputs, ("float16", cache, cache), heads, 1, WIDTH, 1.0, codes=codes)
            name = f"{cache}_h{heads}"
            shapes = dict.fromkeys(shape[:2] for shape in SHAPES[cache])
            variants = (*(cuda.attending(name, meaning, *shape) for shape in shapes), cuda.joining(name))
            lines += cuda.lines(Kernel(name, ATTENTION, (), meaning, variants, ()))
    compiled = nvrtc.compiled("\n".join([*lines, "}  // namespace onnxopt"]), [arch])
    (folder / "coded_caches.fatbin").write_bytes(compiled.fatbin)


def measure(ours: Launches, heads: int, batch: int, past: int) -> dict[str, Any]:
    """Microseconds with each cache, all of which agree with float64, and what their bytes take at that time."""
    found: dict[str, Any] = {}
    for cache in CACHES:
        times = {shape: _one(ours, cache, shape, heads, batch, past) for shape in SHAPES[cache]}
        found[cache] = {"t{}s{} b{}".format(*shape): round(us, 2) for shape, (us, _) in times.items()}
        microseconds, size = min(times.values())
        found[f"{cache}_us"], found[f"{cache}_GBs"] = round(microseconds, 2), round(size / microseconds / 1e3)
    return found


def _one(
    ours: Launches, cache: str, shape: tuple[int, int, int], heads: int, batch: int, past: int
) -> tuple[float, int]:
    import torch

    from benchmarks.support.gpu_timing import microseconds_in_graph

    stored = {"float16": torch.float16, "int8": torch.int8, "float8e4m3fn": torch.float8_e4m3fn}[cache]
    scale = 1.0 if cache == "float16" else _SCALE

    def coded(x: Any) -> Any:
        wide = x.float() / scale
        return wide.round().clamp(-128, 127).to(stored) if cache == "int8" else wide.to(stored)

    size = 2 * batch * GROUPS * (2 * past + 1) * WIDTH * torch.empty(0, dtype=stored).element_size()
    sets = max(1, min(16, int(_ROTATED / size) + 1))
    packed = torch.randn(batch, (heads + 2) * GROUPS, WIDTH, device="cuda", dtype=torch.float16)
    caches = [coded(torch.randn(2, batch, GROUPS, past, WIDTH, device="cuda")) for _ in range(sets)]
    presents = [torch.empty(2, batch, GROUPS, past + 1, WIDTH, device="cuda").to(stored) for _ in range(sets)]
    output = torch.empty(batch, GROUPS * heads, WIDTH, device="cuda", dtype=torch.float16)
    scales = torch.full((1,), scale, device="cuda")
    q, k, v = packed.split([GROUPS * heads, GROUPS, GROUPS], dim=1)
    bytes_of = torch.int16 if cache == "float16" else torch.uint8  # torch joins no 8-bit floats
    wanted = torch.cat([caches[-1].view(bytes_of), coded(torch.stack([k, v])[:, :, :, None]).view(bytes_of)], dim=3)
    keys, values = (x.float() * scale for x in wanted.view(stored))
    scores = torch.einsum("bghw,bgtw->bght", q.reshape(batch, GROUPS, heads, WIDTH).double(), keys.double())
    expected = torch.einsum("bght,bgtw->bghw", (scores / WIDTH**0.5).softmax(-1), values.double())
    splits, tokens = cut(past + 1, batch * GROUPS, shape[2], shape[1])
    ended = torch.zeros(batch * GROUPS, dtype=torch.int32, device="cuda")
    parts = torch.empty(batch * GROUPS * heads * splits * (WIDTH + 2), device="cuda")
    stream, row, name = torch.cuda.Stream(), packed.stride(0), f"{cache}_h{heads}"

    def once(held: Any, present: Any) -> None:
        at = packed.data_ptr()
        params = Params(
            at, at + GROUPS * heads * WIDTH * 2, at + GROUPS * (heads + 1) * WIDTH * 2,
            held[0].data_ptr(), held[1].data_ptr(), present[0].data_ptr(), present[1].data_ptr(),
            output.data_ptr(), parts.data_ptr(), row, row, row, GROUPS, past, splits, tokens, WIDTH**-0.5,
            Scales(scales.data_ptr(), scales.data_ptr(), 0, 0, 0, 0, 0), ended.data_ptr(),
        )  # fmt: skip
        threads, stages, _ = shape
        shared = _shared(cache, heads, threads, stages)
        attend = f"{name}_attend_t{threads}s{stages}"
        ours.launch(attend, batch * GROUPS * splits, threads, params, stream.cuda_stream, shared)

    runs = [functools.partial(once, held, present) for held, present in zip(caches, presents, strict=True)]
    microseconds = microseconds_in_graph(runs, stream, at_least=16, replays=8)
    error = float((output.reshape(expected.shape).double() - expected).norm() / expected.norm())
    if not error < 2e-3 or not torch.equal(presents[-1].view(bytes_of), wanted):
        raise RuntimeError(f"{name}: wrong by {error:.1e}, or other codes")
    return microseconds, size


def _shared(cache: str, heads: int, threads: int, stages: int) -> int:
    """Bytes of shared memory of a block, as kinds/attention/cuda.py counts them."""
    if cache == "float16" or stages == 0:
        return shared_bytes(heads, WIDTH, (threads, stages))
    pitch = 8 * (WIDTH // 8 | 1) * 2
    return 16 * pitch + threads // 32 * max(stages * 32 * WIDTH + 32 * pitch, 16 * (WIDTH + 2) * 4)


def rows(folder: pathlib.Path) -> Rows:
    """A row for each number of heads and each case."""
    import torch

    torch.zeros(1, device="cuda")
    ours = Launches((folder / "coded_caches.fatbin").read_bytes())
    for heads in HEADS:
        for batch, past in CASES:
            name = f"{batch} x {past} tokens, {GROUPS} groups of {heads} heads of {WIDTH}"
            yield name, functools.partial(measure, ours, heads, batch, past)


if __name__ == "__main__":
    sys.exit(main_over_rows(__doc__, prepare, rows))
