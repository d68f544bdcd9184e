"""One token's attention in every launch shape: correctness, and time beside the bytes of the cache.

    python -m benchmarks.kernels.token_attention prepare DIR --arch sm_90     on any machine, without a GPU
    python -m benchmarks.kernels.token_attention run DIR --out OUT.json       on the GPU machine: torch; about 10 s

Every case is compared with float64 first. Several caches are read in rotation, so that they come from memory. torch's
column is scaled_dot_product_attention over a static cache, which copies nothing.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.kernels.products import Launches
from benchmarks.support.arguments import Rows, main_over_rows

FORMS = (("float16", 128, 2), ("float16", 128, 4), ("float16", 64, 1), ("bfloat16", 128, 8))  # dtype, width, heads
SHAPES = ((256, 0), (128, 3), (256, 2))  # threads, stages (0: without tensor cores)
# form, batch, groups, tokens in the cache
CASES = (
    *((FORMS[0], *case) for case in ((1, 8, 512), (1, 8, 4096), (4, 8, 1024), (1, 8, 32768), (3, 2, 77), (1, 8, 0))),
    *((FORMS[1], *case) for case in ((1, 8, 512), (1, 8, 4096), (4, 8, 1024), (1, 8, 32768))),
    *((form, 2, 4, 1000) for form in FORMS[1:]),
)
# Threads, stages, blocks a multiprocessor that the library takes: for short caches of few rows, and for the rest.
FEW, CHOSEN = (256, 0, 2), (256, 2, 1)
_LONG, _FEW_ROWS = 12 << 20, 2
BLOCKS = (1, 2, 4)  # a multiprocessor, over which the tokens are spread
_ROTATED = 150e6
_MAX_SPLITS = 256  # kMaxSplits of token_attention_abi.h
_MIN_KEYS = 32  # of a block


def prepare(folder: pathlib.Path, arch: str) -> None:
    from onnxopt.codegen import nvrtc
    from onnxopt.fusion.region import Kernel
    from onnxopt.kinds.attention import cuda
    from onnxopt.kinds.attention.kind import ATTENTION
    from onnxopt.program.attention import TokenAttention

    folder.mkdir(parents=True)
    lines = ['#include "attention/token_attention.cuh"', "namespace onnxopt {"]
    for dtype, width, heads in FORMS:
        meaning = TokenAttention((dtype,) * 3, (dtype,) * 3, heads, 1, width, 1.0)
        name = _name((dtype, width, heads))
        variants = (*(cuda.attending(name, meaning, *shape) for shape in SHAPES), cuda.joining(name))
        lines += cuda.lines(Kernel(name, ATTENTION, (), meaning, variants, ()))
    compiled = nvrtc.compiled("\n".join([*lines, "}  // namespace onnxopt"]), [arch])
    (folder / "token_attention.fatbin").write_bytes(compiled.fatbin)
    for symbol, usage in compiled.usage[arch].items():
        if "attend" in symbol:
            print(symbol, usage)


def _name(form: tuple[str, int, int]) -> str:
    return f"{form[0]}_w{form[1]}h{form[2]}"


def shared_bytes(rows: int, width: int, shape: tuple[int, int], masked: bool = False) -> int:
    """Of a block that attends, as kinds/attention/cuda.py counts them. rows: heads of tokens that a block takes."""
    threads, stages = shape
    pitch = 8 * (width // 8 | 1) * 2
    if stages == 0:
        return threads // 32 * rows * (width + 2) * 4
    masks = -(-rows * 36 // 16) * 16 if masked else 0
    return 16 * pitch + threads // 32 * max(stages * (32 * pitch + masks), 16 * (width + 2) * 4)


def cut(keys: int, others: int, blocks: int, stages: int) -> tuple[int, int]:
    """Blocks that share keys, and keys of each, as custom_ops/cuda/attention.cc has them. blocks: a multiprocessor."""
    import torch

    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    wanted = min(max(blocks * multiprocessors // others, 1), _MAX_SPLITS)
    if stages > 0:  # tiles are taken in turn
        splits = max(min(-(-keys // _MIN_KEYS), wanted), 1)
        return splits, -(-keys // splits)
    least = -(-keys // wanted)
    tokens = max(-(-least // _MIN_KEYS), 1) * _MIN_KEYS
    return max(-(-keys // tokens), 1), tokens


class Scales(ctypes.Structure):  # CacheScales of cache_codes_abi.h
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("k", "v")),
        *((n, ctypes.c_uint) for n in ("k_head", "k_element", "v_head", "v_element", "by_reciprocal")),
    )


class Params(ctypes.Structure):  # TokenAttentionParams of token_attention_abi.h
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("q", "k", "v", "past_k", "past_v")),
        *((n, ctypes.c_void_p) for n in ("present_k", "present_v", "output", "parts")),
        *((n, ctypes.c_ulonglong) for n in ("q_stride", "k_stride", "v_stride")),
        *((n, ctypes.c_uint) for n in ("groups", "past", "splits", "split_tokens")),
        ("scale", ctypes.c_float), ("scales", Scales), ("ended", ctypes.c_void_p),
    )  # fmt: skip


def measure(ours: Launches, form: tuple[str, int, int], batch: int, groups: int, past: int) -> dict[str, Any]:
    """Microseconds of every launch shape, all of which agree with float64, and of torch."""
    import torch

    from benchmarks.support.gpu_timing import microseconds_in_graph

    name, width, heads = form
    given: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, name)}
    bytes_moved = 4 * batch * groups * (past + past + 1) * width
    sets = max(1, min(16, int(_ROTATED / max(bytes_moved, 1)) + 1))
    packed = torch.randn(batch, (heads + 2) * groups, width, **given)
    caches = [torch.randn(2, batch, groups, past, width, **given) for _ in range(sets)]
    presents = [torch.empty(2, batch, groups, past + 1, width, **given) for _ in range(sets)]
    output = torch.empty(batch, groups * heads, width, **given)
    q, k, v = packed.split([groups * heads, groups, groups], dim=1)
    wanted = torch.cat([caches[-1], torch.stack([k, v])[:, :, :, None]], dim=3)
    scores = torch.einsum("bghw,bgtw->bght", q.reshape(batch, groups, heads, width).double(), wanted[0].double())
    expected = torch.einsum("bght,bgtw->bghw", (scores / width**0.5).softmax(-1), wanted[1].double())
    stream, row = torch.cuda.Stream(), packed.stride(0)
    ended = torch.zeros(batch * groups, dtype=torch.int32, device="cuda")
    times, size = {}, packed.element_size()
    for shape, blocks in itertools.product(SHAPES, BLOCKS):
        splits, tokens = cut(past + 1, batch * groups, blocks, shape[1])
        parts = torch.empty(batch * groups * heads * splits * (width + 2), device="cuda")
        (threads, stages), shared = shape, shared_bytes(heads, width, shape)
        entry = f"{_name(form)}_attend_t{threads}s{stages}"

        def once(cache: Any, present: Any, entry: str = entry, tokens: int = tokens, splits: int = splits,
                 parts: Any = parts, threads: int = threads, shared: int = shared) -> None:  # fmt: skip
            at = packed.data_ptr()
            params = Params(
                at, at + groups * heads * width * size, at + groups * (heads + 1) * width * size,
                cache[0].data_ptr(), cache[1].data_ptr(), present[0].data_ptr(), present[1].data_ptr(),
                output.data_ptr(), parts.data_ptr(), row, row, row, groups, past, splits, tokens, width**-0.5,
                Scales(), ended.data_ptr(),
            )  # fmt: skip
            ours.launch(entry, batch * groups * splits, threads, params, stream.cuda_stream, shared)

        runs = [lambda c=c, p=p, f=once: f(c, p) for c, p in zip(caches, presents, strict=True)]
        presents[-1].fill_(float("nan"))
        torch.cuda.synchronize()
        times[f"{entry} b{blocks}"] = round(microseconds_in_graph(runs, stream, at_least=16, replays=8), 2)
        error = (output.reshape(expected.shape).double() - expected).norm() / expected.norm()
        if not error < (1e-3 if name == "float16" else 8e-3) or not torch.equal(presents[-1], wanted):
            raise RuntimeError(f"{entry}: wrong by {error:.1e}, cache equal: {torch.equal(presents[-1], wanted)}")
    query = q.reshape(batch, groups * heads, 1, width)
    attend: Callable[..., Any] = torch.nn.functional.scaled_dot_product_attention
    static = [lambda p=p: attend(query, p[0], p[1], enable_gqa=True) for p in presents]
    best = sorted(times.items(), key=lambda x: x[1])
    chosen = times[
        "{}_attend_t{}s{} b{}".format(_name(form), *(FEW if heads <= _FEW_ROWS and bytes_moved < 2 * _LONG else CHOSEN))
    ]
    gigabytes = bytes_moved / best[0][1] / 1e3
    return {
        "best_us": best[0][1], "best": best[0][0], "chosen_us": chosen,
        "next": [f"{k} {v}" for k, v in best[1:4]], "best_GBs": round(gigabytes),
        "torch_us": round(microseconds_in_graph(static, stream, at_least=16, replays=8), 2), "all": dict(best),
    }  # fmt: skip


def rows(folder: pathlib.Path) -> Rows:
    import torch

    torch.zeros(1, device="cuda")
    ours = Launches((folder / "token_attention.fatbin").read_bytes())
    for form, batch, groups, past in CASES:
        name = f"{form[0]} {batch} x {groups} groups of {form[2]} x {past} x {form[1]}"
        yield name, functools.partial(measure, ours, form, batch, groups, past)


if __name__ == "__main__":
    sys.exit(main_over_rows(__doc__, prepare, rows))
