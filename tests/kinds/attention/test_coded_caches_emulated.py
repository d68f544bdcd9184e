"""Attention to caches of 8-bit codes, device code run on the CPU by g++ and threads, against numpy."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from onnxopt.codegen import nvrtc
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.attention import cuda
from onnxopt.kinds.attention.kind import ATTENTION
from onnxopt.program.attention import CODES, CacheCodes, TokenAttention
from tests.support.emulation import emulated

_MAIN = """
#include "matrix_words.h"
#include "attention/cache_codes.cuh"
using Stored = %(stored)s;
using namespace onnxopt;
int main() {
  constexpr unsigned batch = %(batch)d, groups = %(groups)d, heads = %(heads)d, width = %(width)d, past = %(past)d;
  constexpr unsigned tokens = %(tokens)d, splits = %(splits)d, keys = past + tokens, rows = tokens * heads;
  auto q = emulation::read<Stored>("q", batch * tokens * groups * heads * width);
  auto k = emulation::read<Stored>("k", batch * tokens * groups * width);
  auto v = emulation::read<Stored>("v", batch * tokens * groups * width);
  auto past_k = emulation::read<unsigned char>("past_k", batch * groups * past * width);
  auto past_v = emulation::read<unsigned char>("past_v", batch * groups * past * width);
  auto mask = emulation::read<Stored>("mask", tokens * keys);
  auto sk = emulation::read<float>("sk", %(scales)d), sv = emulation::read<float>("sv", 1);
  std::vector<unsigned char> present_k(batch * groups * keys * width), present_v = present_k;
  std::vector<Stored> output(q.size());
  std::vector<float> parts(batch * groups * splits * rows * (width + 2));
  const CacheScales scales{sk.data(), sv.data(), %(head)d, %(element)d, 0, 0, %(reciprocal)d};
  std::vector<unsigned> ended(batch * groups);
  %(run)s
  if (ended != std::vector<unsigned>(batch * groups)) return 1;
  emulation::write("present_k", present_k);
  emulation::write("present_v", present_v);
  emulation::write("output", output);
}
"""
_TOKEN = """
  const TokenAttentionParams params{q.data(), k.data(), v.data(), past_k.data(), past_v.data(),
    present_k.data(), present_v.data(), output.data(), parts.data(), groups * heads * width, groups * width,
    groups * width, groups, past, splits, %(split_tokens)d, 0.25f, scales, %(counted)s ? ended.data() : nullptr};
  emulation::launch(batch * groups * splits, 64, [&] {
    attend_to_codes<%(dtype)s, %(codes)s, float, 2, width, heads, 2, 64, %(stages)d>(params);
  });
  if (%(joins)s) {
    emulation::launch(batch * groups * heads, 64, [&] { join_attended<%(dtype)s, width, heads, 64>(params); });
  }
"""
_MASKED = """
  const MaskedAttentionParams params{q.data(), k.data(), v.data(), past_k.data(), past_v.data(), mask.data(),
    nullptr, present_k.data(), present_v.data(), output.data(), parts.data(), 0, 0, keys, tokens, heads, groups, past,
    keys, 1, splits, %(split_tokens)d, 0.25f, scales, %(counted)s ? ended.data() : nullptr};
  emulation::launch(batch * groups * splits, 64, [&] {
    attend_masked_to_codes<%(dtype)s, %(codes)s, float, 2, width, rows, 2, 64, %(stages)d, false>(params);
  });
  if (%(joins)s) {
    emulation::launch(batch * groups * rows, 64, [&] { join_masked<%(dtype)s, width, rows, 64>(params); });
  }
"""


def _coded(x: np.ndarray, scale: np.ndarray, codes: str, by_reciprocal: bool) -> np.ndarray:
    x = x * (np.float32(1) / scale) if by_reciprocal else x / scale
    if codes == "int8":
        return np.clip(np.rint(x), -128, 127).astype(np.int8)
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn)


# How many stages each takes in turn: lanes and one of the others.
CASES = [
    ((0, 1), "int8", "tensor", 1, 2, 1, 64, 70, 3, True),
    ((0, 3), "float8e4m3fn", "channel", 2, 3, 1, 32, 31, 1, False),
    ((0, 3), "int8", "element", 2, 1, 3, 32, 33, 2, False),
    ((0, 1), "float8e4m3fn", "head", 1, 2, 2, 16, 0, 1, False),
    ((0, 1, 3), "int8", "channel", 1, 4, 2, 128, 133, 2, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "codes", "per", "batch", "heads", "tokens", "width", "past", "splits", "by_reciprocal"),
    [(stages, *case) for taken, *case in CASES for stages in taken],
)
def test_it_reads_and_extends_codes(
    tmp_path: Path, codes: str, per: str, batch: int, heads: int, tokens: int, width: int, past: int, splits: int,
    by_reciprocal: bool, stages: int,
) -> None:  # fmt: skip
    """stages: of tiles on tensor cores, in float16; 0 for lanes, in float32."""
    stored = np.float16 if stages else np.float32
    rng, groups = np.random.default_rng(past + width), 2
    q = rng.standard_normal((batch, tokens, groups, heads, width)).astype(np.float32)
    k, v = rng.standard_normal((2, batch, tokens, groups, width)).astype(np.float32)
    dims = (groups if per in ("head", "channel") else 1, width if per in ("element", "channel") else 1)
    sk = rng.uniform(0.01, 0.03, dims).astype(np.float32)
    sv = np.full((1, 1), 0.02, np.float32)
    k[:, :, :, :3] = (rng.integers(-80, 80, k[:, :, :, :3].shape) + 0.5) * np.broadcast_to(sk, (groups, width))[:, :3]
    q, k, v = (x.astype(stored).astype(np.float32) for x in (q, k, v))
    old = _coded(
        rng.standard_normal((2, batch, groups, past, width)).astype(np.float32), np.float32(0.02), codes, False
    )
    mask = np.where(np.arange(past + tokens) <= np.arange(past, past + tokens)[:, None], 0, -np.inf).astype(np.float32)
    given = {"q": q, "k": k, "v": v, "past_k": old[0], "past_v": old[1], "mask": mask, "sk": sk, "sv": sv}
    for name, value in given.items():
        (value.astype(stored) if name in ("q", "k", "v", "mask") else value).tofile(tmp_path / name)
    new = [_coded(x, s, codes, by_reciprocal).swapaxes(1, 2) for x, s in ((k, sk), (v, sv))]
    present = [np.concatenate([o, n], axis=2) for o, n in zip(old, new, strict=True)]
    keys, values = (x.astype(np.float64) * s[:, None] for x, s in zip(present, (sk, sv), strict=True))
    scores = 0.25 * np.einsum("bsghw,bgtw->bghst", q.astype(np.float64), keys) + mask
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected = np.einsum("bghst,bgtw->bsghw", weights / weights.sum(axis=-1, keepdims=True), values)
    filled = {
        "batch": batch, "groups": groups, "heads": heads, "tokens": tokens, "width": width, "past": past,
        "splits": splits, "scales": sk.size, "head": dims[1] if dims[0] > 1 else 0, "element": int(dims[1] > 1),
        "reciprocal": int(by_reciprocal), "codes": "int8_t" if codes == "int8" else codes,
        "split_tokens": -(-(past + tokens) // splits), "stages": stages,
        "stored": "unsigned short" if stages else "float", "dtype": "float16" if stages else "float",
        "counted": str(stages != 1).lower(), "joins": str(stages == 1 and splits > 1).lower(),
    }  # fmt: skip
    run = (_TOKEN if tokens == 1 else _MASKED) % filled
    emulated.run(tmp_path, _MAIN % {**filled, "run": run})
    for name, value in zip(("present_k", "present_v"), present, strict=True):
        assert np.array_equal(np.fromfile(tmp_path / name, np.uint8), np.ravel(value.view(np.uint8))), name
    found = np.fromfile(tmp_path / "output", stored).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=2e-3 if stages else 3e-5, atol=2e-3 if stages else 3e-6)


def test_it_compiles_without_spilling() -> None:
    text = ['#include "attention/cache_codes.cuh"', "namespace onnxopt {"]
    for number, (dtype, heads, tokens) in enumerate((("float16", 8, 16), ("bfloat16", 8, 0), ("float16", 4, 0))):
        codes, mask = CODES[number % 2], (dtype,) * (tokens > 0)
        inputs = (*(dtype,) * 3, codes, codes, *mask, "float32")
        meaning = TokenAttention(
            inputs, (dtype, codes, codes), heads, 1, 128, 1.0, 0, 1, 2, 3, 4, max(tokens, 1), 5 if tokens else None,
            codes=CacheCodes(len(inputs) - 1, len(inputs) - 1),
        )  # fmt: skip
        meaning.verify()
        name = f"k{number}"
        text += cuda.lines(Kernel(name, ATTENTION, (), meaning, cuda.entry_points(name, meaning), ()))
    compiled = nvrtc.compiled("\n".join([*text, "}"]), ("sm_75", "sm_90"))
    for arch, usage in compiled.usage.items():
        assert len(usage) == 12, arch
        assert all(kernel.spilled == 0 for kernel in usage.values()), (arch, usage)
