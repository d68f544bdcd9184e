"""Attention of one to sixteen new tokens under a mask: correctness, and time for every number of rows of a block.

    python -m benchmarks.kernels.masked_attention prepare DIR --arch sm_90    on any machine, without a GPU
    python -m benchmarks.kernels.masked_attention run DIR --out OUT.json      on the GPU machine: torch; about 20 s

Every case is compared with float64 first. Several caches are read in rotation, so that they come from memory. torch_us
is scaled_dot_product_attention over a static cache, which copies nothing. copied_us is what the graph says without the
kernel: the cache and the new tokens in one tensor, repeated for the heads of each group, then the same attention.
kinds/attention/masked.py decides when the kernel runs; these figures are to decide it.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import pathlib
import sys
from typing import Any, NamedTuple

from benchmarks.kernels.products import Launches
from benchmarks.kernels.token_attention import Scales, cut, shared_bytes
from benchmarks.support.arguments import Rows, main_over_rows


class Case(NamedTuple):
    """heads: of each of the `groups`. past: tokens in the cache."""

    dtype: str
    width: int
    heads: int
    tokens: int
    batch: int
    groups: int
    past: int
    in_place: bool = False  # the cache has room for the new tokens, and is not copied

    @property
    def name(self) -> str:
        heads = f"{self.batch} x {self.groups} groups of {self.heads} x {self.width}"
        return f"{self.dtype} {heads}, {self.tokens} {'in' if self.in_place else 'behind'} {self.past}"


ROWS = (1, 2, 4, 8, 16)  # of a block
FORMS = (("float16", 128), ("bfloat16", 128), ("float16", 64))
# Threads, stages (0: without tensor cores), whether keys are in registers; more than those of token_attention.py.
SHAPES = ((256, 0, False), (128, 3, False), (256, 2, False), (256, 3, False), (256, 1, True))
_ROWS_IN_REGISTERS = 8
BLOCKS = (1, 2, 4)  # a multiprocessor, over which the keys are spread
CASES = (
    *(Case("float16", 128, heads, tokens, 1, 8, past) for heads, tokens, past in itertools.product(
        (1, 4, 8), (1, 2, 4, 8, 16), (512, 4096))),
    *(Case("float16", 128, 4, tokens, 4, 8, 4096) for tokens in (2, 8)),
    *(Case("float16", 128, 4, tokens, 1, 8, 32768) for tokens in (1, 4, 16)),
    *(Case("float16", 128, heads, 1, 1, 8, past, True) for heads in (1, 2, 4, 8) for past in (4096, 32768)),
    Case("float16", 128, 4, 4, 1, 8, 32768, True),
    *(Case(dtype, width, 4, 4, 2, 4, 1000) for dtype, width in FORMS[1:]),
)  # fmt: skip
_ROTATED = 150e6


def prepare(folder: pathlib.Path, arch: str) -> None:
    from onnxopt.codegen import nvrtc
    from onnxopt.program.dtypes import DTYPES

    folder.mkdir(parents=True)
    lines = ['#include "attention/masked_attention.cuh"', "namespace onnxopt {"]
    for (dtype, width), rows, shape, in_place in itertools.product(FORMS, ROWS, SHAPES, (False, True)):
        form, (threads, stages, registers) = f"{DTYPES[dtype].cuda}, {width}, {rows}", shape
        if (in_place and (dtype, width) != FORMS[0]) or (registers and rows > _ROWS_IN_REGISTERS):
            continue
        name = _name(dtype, width, rows, shape, in_place)
        call = f"attend_masked<{form}, {threads}, {stages}, {str(in_place).lower()}>"
        if registers:
            call = f"attend_masked_in_registers<{form}, {threads}, {str(in_place).lower()}>"
        lines += _entry(f"{name}_attend", call, f"{threads}, 1" if stages else f"{threads}")
    compiled = nvrtc.compiled("\n".join([*lines, "}  // namespace onnxopt"]), [arch])
    (folder / "masked_attention.fatbin").write_bytes(compiled.fatbin)
    for symbol, usage in compiled.usage[arch].items():
        if "attend" in symbol:
            print(symbol, usage)


def _launch_name(shape: tuple[int, int, bool]) -> str:
    threads, stages, registers = shape
    return f"t{threads}{'r' if registers else f's{stages}'}"


def _shared_bytes(rows: int, width: int, shape: tuple[int, int, bool]) -> int:
    threads, stages, registers = shape
    if registers:
        return 2 * 16 * width * 2 + threads // 32 * rows * (width + 4) * 4
    return shared_bytes(rows, width, (threads, stages), masked=True)


def _entry(name: str, call: str, bounds: str) -> list[str]:
    return [
        f'extern "C" __global__ void __launch_bounds__({bounds})',
        f"{name}(const __grid_constant__ MaskedAttentionParams params) {{",
        f"  {call}(params);",
        "}",
    ]


def _name(dtype: str, width: int, rows: int, shape: tuple[int, int, bool], in_place: bool) -> str:
    return f"{dtype}_w{width}r{rows}_{_launch_name(shape)}{'_in_place' if in_place else ''}"


class _Params(ctypes.Structure):  # MaskedAttentionParams of masked_attention_abi.h
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("q", "k", "v", "past_k", "past_v", "mask", "slots")),
        *((n, ctypes.c_void_p) for n in ("present_k", "present_v", "output", "parts")),
        *((n, ctypes.c_ulonglong) for n in ("mask_sequence", "mask_head", "mask_token")),
        *(
            (n, ctypes.c_uint)
            for n in ("tokens", "heads", "groups", "past", "keys", "chunks", "splits", "split_tokens")
        ),
        ("scale", ctypes.c_float), ("scales", Scales), ("ended", ctypes.c_void_p),
    )  # fmt: skip


def measure(ours: Launches, case: Case) -> dict[str, Any]:
    """Microseconds of every launch shape, all of which agree with float64, and of torch."""
    import torch

    from benchmarks.support.gpu_timing import microseconds_in_graph

    dtype, width, heads, tokens, batch, groups, past, in_place = case
    given: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, dtype)}
    keys = past + (0 if in_place else tokens)
    sets = max(1, min(16, int(_ROTATED / (4 * batch * groups * keys * width)) + 1))
    q = torch.randn(batch, tokens, groups, heads, width, **given)
    fresh = torch.randn(2, batch, tokens, groups, width, **given)
    caches = [torch.randn(2, batch, groups, past, width, **given) for _ in range(sets)]
    presents = caches if in_place else [torch.empty(2, batch, groups, keys, width, **given) for _ in range(sets)]
    slots = torch.arange(keys - tokens, keys, device="cuda")
    seen = torch.arange(keys, device="cuda") <= slots[:, None]
    mask = torch.where(seen, 0.0, -65504.0).to(given["dtype"])
    output = torch.empty_like(q)
    old = caches[-1][:, :, :, : keys - tokens].clone()
    wanted = torch.cat([old, fresh.transpose(2, 3)], dim=3)
    scores = torch.einsum("bsghw,bgtw->bghst", q.double(), wanted[0].double()) / width**0.5 + mask.double()
    expected = torch.einsum("bghst,bgtw->bsghw", scores.softmax(-1), wanted[1].double())
    stream = torch.cuda.Stream()
    times: dict[str, float] = {}
    for rows, shape, blocks in itertools.product(ROWS, SHAPES, BLOCKS):
        if (
            (shape[2] and rows > _ROWS_IN_REGISTERS)
            or rows > tokens * heads
            or (rows < min(16, tokens * heads) and past > 512)
        ):
            continue
        chunks = -(-tokens * heads // rows)
        others = batch * groups * chunks
        splits, each = cut(keys, others, blocks, shape[1])
        ended = torch.zeros(others, dtype=torch.int32, device="cuda")
        parts = torch.empty(others * rows * splits * (width + 2), device="cuda")
        entry, threads = _name(dtype, width, rows, shape, in_place), shape[0]
        shared = _shared_bytes(rows, width, shape)

        def once(cache: Any, present: Any, entry: str = entry, each: int = each, splits: int = splits,
                 parts: Any = parts, threads: int = threads, chunks: int = chunks,
                 ended: Any = ended, shared: int = shared) -> None:  # fmt: skip
            params = _Params(
                q.data_ptr(), fresh[0].data_ptr(), fresh[1].data_ptr(), cache[0].data_ptr(), cache[1].data_ptr(),
                mask.data_ptr(), slots.data_ptr(), present[0].data_ptr(), present[1].data_ptr(), output.data_ptr(),
                parts.data_ptr(), 0, 0, keys, tokens, heads, groups, past, keys, chunks, splits, each, width**-0.5,
                Scales(), ended.data_ptr(),
            )  # fmt: skip
            blocks_of_all = batch * groups * chunks * splits
            ours.launch(f"{entry}_attend", blocks_of_all, threads, params, stream.cuda_stream, shared)

        runs = [lambda c=c, p=p, f=once: f(c, p) for c, p in zip(caches, presents, strict=True)]
        if not in_place:
            presents[-1].fill_(float("nan"))
        torch.cuda.synchronize()
        times[f"{entry} b{blocks}"] = round(microseconds_in_graph(runs, stream, at_least=16, replays=8), 2)
        error = (output.double() - expected).norm() / expected.norm()
        if not error < (1e-3 if dtype == "float16" else 8e-3) or not torch.equal(presents[-1], wanted):
            raise RuntimeError(f"{entry}: wrong by {error:.1e}, cache equal: {torch.equal(presents[-1], wanted)}")
    best = sorted(times.items(), key=lambda x: x[1])
    return {
        "best_us": best[0][1],
        "best": best[0][0],
        **_peers(q, fresh, [] if in_place else caches, presents, mask, stream),
        "all": dict(best),
    }


def _peers(q: Any, fresh: Any, caches: list[Any], presents: list[Any], mask: Any, stream: Any) -> dict[str, float]:
    """Microseconds of torch over a static cache, and over copies as the graph asks for them."""
    import torch

    from benchmarks.support.gpu_timing import microseconds_in_graph

    attend: Any = torch.nn.functional.scaled_dot_product_attention
    batch, tokens, groups, heads, width = q.shape
    query = q.reshape(batch, tokens, groups * heads, width).transpose(1, 2)

    def copied(cache: Any) -> None:
        whole = torch.cat([cache, fresh.transpose(2, 3)], dim=3)
        k, v = (x.repeat_interleave(heads, dim=1) for x in whole)
        attend(query, k, v, attn_mask=mask)

    static = [lambda p=p: attend(query, p[0], p[1], attn_mask=mask, enable_gqa=True) for p in presents]
    copies = [lambda c=c: copied(c) for c in caches]
    return {
        name: round(microseconds_in_graph(runs, stream, at_least=16, replays=8), 2)
        for name, runs in (("torch_us", static), ("copied_us", copies))
        if runs
    }


def rows(folder: pathlib.Path) -> Rows:
    import torch

    torch.zeros(1, device="cuda")
    ours = Launches((folder / "masked_attention.fatbin").read_bytes())
    for case in CASES:
        yield case.name, functools.partial(measure, ours, case)


if __name__ == "__main__":
    sys.exit(main_over_rows(__doc__, prepare, rows))
