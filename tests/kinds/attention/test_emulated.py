"""One token's attention, run on the CPU by g++ and threads (emulation/cuda.h), against numpy.

What is tested is the device code itself: caches that do not fill a block or its last split, an empty cache, groups of
several heads, packed operands, several sequences. "tiles" multiplies float16 on matrix units, "lanes" float32 without.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.emulation import emulated

_MAIN = """
#include "matrix_words.h"
#include "attention/token_attention.cuh"
using Stored = %(stored)s;
using namespace onnxopt;
int main() {
  constexpr unsigned batch = %(batch)d, groups = %(groups)d, heads = %(heads)d, width = %(width)d, past = %(past)d;
  constexpr unsigned splits = %(splits)d, tokens = %(tokens)d, row = (groups * heads + 2 * groups) * width;
  auto packed = emulation::read<Stored>("packed", batch * row);
  auto past_k = emulation::read<Stored>("past_k", batch * groups * past * width);
  auto past_v = emulation::read<Stored>("past_v", batch * groups * past * width);
  std::vector<Stored> present_k(batch * groups * (past + 1) * width), present_v = present_k;
  std::vector<Stored> output(batch * groups * heads * width);
  std::vector<float> parts(batch * groups * splits * heads * (width + 2));
  const Stored* const q = packed.data();
  std::vector<unsigned> ended(batch * groups);
  TokenAttentionParams params{q, q + groups * heads * width, q + (groups * heads + groups) * width,
    past_k.data(), past_v.data(), present_k.data(), present_v.data(), output.data(), parts.data(), row, row, row,
    groups, past, splits, tokens, %(scale)ff};
  std::vector<Stored> outputs[2];  // with a second launch, and without
  for (auto& found : outputs) {
    emulation::launch(batch * groups * splits, %(threads)d, [&] {
      %(call)s;
    });
    if (params.ended == nullptr && splits > 1) {
      emulation::launch(batch * groups * heads, %(threads)d, [&] {
        join_attended<%(dtype)s, width, heads, %(threads)d>(params);
      });
    }
    found = output;
    output.assign(output.size(), Stored(-1));
    params.ended = ended.data();
  }
  if (ended != std::vector<unsigned>(ended.size())) return 1;
  emulation::write("present_k", present_k);
  emulation::write("present_v", present_v);
  emulation::write("joined", outputs[0]);
  emulation::write("output", outputs[1]);
  return 0;
}
"""


CALLS = {
    "tiles": "attend<float16, width, heads, {threads}, {stages}>(params)",
    "lanes": "CacheLanes<float, width, heads, {threads}, false>::attend("
    "TokenCache<float, width, heads, false>(params), {{}})",
}


@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize(
    ("batch", "groups", "heads", "width", "past", "splits", "stages"),
    [
        (1, 2, 2, 64, 70, 3, 2), (2, 1, 3, 32, 31, 1, 1), (1, 1, 1, 128, 33, 2, 3), (2, 2, 2, 16, 0, 1, 4),
        (1, 1, 8, 64, 150, 2, 3),
    ],
)  # fmt: skip
def test_token_attention(
    tmp_path: Path, form: str, batch: int, groups: int, heads: int, width: int, past: int, splits: int, stages: int
) -> None:
    rng = np.random.default_rng(past)
    stored = np.float16 if form == "tiles" else np.float32
    packed = rng.standard_normal((batch, groups * heads + 2 * groups, width)).astype(stored)
    cache = rng.standard_normal((2, batch, groups, past, width)).astype(stored)
    for name, value in {"packed": packed, "past_k": cache[0], "past_v": cache[1]}.items():
        value.tofile(tmp_path / name)
    q, k, v = np.split(packed.astype(np.float64), [groups * heads, groups * heads + groups], axis=1)
    keys, values = (np.concatenate([c, x[:, :, None]], axis=2) for c, x in ((cache[0], k), (cache[1], v)))
    scores = 0.25 * np.einsum("bghw,bgtw->bght", q.reshape(batch, groups, heads, width), keys)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    output = np.einsum("bght,bgtw->bghw", weights, values)
    expected = {"output": output, "joined": output, "present_k": keys, "present_v": values}
    filled = {
        "batch": batch, "groups": groups, "heads": heads, "width": width, "past": past, "splits": splits,
        "threads": 64, "scale": 0.25, "tokens": -(-(past + 1) // splits), "call": CALLS[form].format(
            threads=64, stages=stages), "stored": "float" if form == "lanes" else "unsigned short",
        "dtype": "float" if form == "lanes" else "float16",
    }  # fmt: skip
    emulated.run(tmp_path, _MAIN % filled)
    for name, value in expected.items():
        found = np.fromfile(tmp_path / name, stored).reshape(value.shape)
        exact = form == "lanes" or name.startswith("present")
        np.testing.assert_allclose(
            found, value, rtol=2e-5 if exact else 2e-3, atol=2e-6 if exact else 1e-3, err_msg=name
        )
