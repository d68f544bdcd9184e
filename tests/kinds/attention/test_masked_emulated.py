"""Several tokens' attention under a mask, run on the CPU by g++ and threads (emulation/cuda.h), against numpy.

What is tested is the device code itself: rows that fill no block, keys that fill no split, empty caches, caches with
room, masks that broadcast, rows of which every key is hidden. "tiles" multiplies float16 on matrix units, "registers"
too without shared memory in between, "lanes" float32 without.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.codegen import nvrtc
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.attention import cuda
from onnxopt.kinds.attention.kind import ATTENTION
from onnxopt.program.attention import SLOTS, TokenAttention, rows_of_a_block
from tests.support.emulation import emulated

# Hides a key. Where all of a row are hidden, float32 keeps enough of the scores beside the second one.
MIN = {"lanes": -3.4028235e38, "tiles": -4096.0, "registers": -4096.0}
_PLACED = (
    "static int slots_[kMostNew]; for (unsigned t = 0; t < tokens; ++t) slots_[t] = slots[t] < 0 ? slots[t] + past : "
    "slots[t]; "
)
CALLS = {
    "tiles": "attend_masked<float16, width, rows, {threads}, {stages}, {slots}>(params)",
    "registers": "attend_masked_in_registers<float16, width, rows, {threads}, {slots}>(params)",
    "lanes": f"{_PLACED}CacheLanes<float, width, rows, {{threads}}, true>::attend("
    "MaskedCache<float, width, rows, {slots}, false>(params, slots_), {{}})",
}
_MAIN = """
#include "matrix_words.h"
#include "attention/masked_attention.cuh"
using Stored = %(stored)s;
using namespace onnxopt;
int main() {
  constexpr unsigned batch = %(batch)d, groups = %(groups)d, heads = %(heads)d, width = %(width)d, past = %(past)d;
  constexpr unsigned tokens = %(tokens)d, splits = %(splits)d, rows = %(rows)d, chunks = %(chunks)d;
  auto q = emulation::read<Stored>("q", batch * tokens * groups * heads * width);
  auto k = emulation::read<Stored>("k", batch * tokens * groups * width);
  auto v = emulation::read<Stored>("v", batch * tokens * groups * width);
  auto past_k = emulation::read<Stored>("past_k", batch * groups * past * width);
  auto past_v = emulation::read<Stored>("past_v", batch * groups * past * width);
  auto mask = emulation::read<Stored>("mask", %(mask)d);
  auto slots = emulation::read<long long>("slots", tokens);
  std::vector<Stored> present_k(batch * groups * %(keys)d * width), present_v = present_k;
  std::vector<Stored> output(q.size());
  std::vector<float> parts(batch * groups * splits * chunks * rows * (width + 2));
  std::vector<unsigned> ended(batch * groups * chunks);
  MaskedAttentionParams params{q.data(), k.data(), v.data(), past_k.data(), past_v.data(), mask.data(),
    %(in_slots)s ? slots.data() : nullptr, %(in_place)s ? past_k.data() : present_k.data(),
    %(in_place)s ? past_v.data() : present_v.data(), output.data(), parts.data(),
    %(strides)s, tokens, heads, groups, past, %(keys)d, chunks, splits, %(split_tokens)d, %(scale)ff};
  std::vector<Stored> outputs[2];  // with a second launch, and without
  for (auto& found : outputs) {
    emulation::launch(batch * groups * splits * chunks, %(threads)d, [&] {
      %(call)s;
    });
    if (params.ended == nullptr && splits > 1) {
      emulation::launch(batch * groups * chunks * rows, %(threads)d, [&] {
        join_masked<%(dtype)s, width, rows, %(threads)d>(params);
      });
    }
    found = output;
    output.assign(output.size(), Stored(-1));
    params.ended = ended.data();
  }
  if (ended != std::vector<unsigned>(ended.size())) return 1;
  emulation::write("present_k", %(in_place)s ? past_k : present_k);
  emulation::write("present_v", %(in_place)s ? past_v : present_v);
  emulation::write("joined", outputs[0]);
  emulation::write("output", outputs[1]);
  return 0;
}
"""


def masks(
    rng: np.random.Generator, form: str, batch: int, heads: int, tokens: int, past: int, least: float
) -> np.ndarray:
    """causal: the same for all. padded: each sequence hides some first keys, and all keys of its first token. drawn:
    of every head."""
    seen = np.arange(past + tokens) <= np.arange(past, past + tokens)[:, None]
    if form == "padded":
        seen = seen & (np.arange(past + tokens) >= rng.integers(0, past + 1, (batch, 1, 1, 1)))
        seen[0, :, 0] = False
    if form == "drawn":
        drawn = rng.standard_normal((batch, heads, tokens, past + tokens))
        return np.where(seen, drawn, -np.inf).astype(np.float32)
    return np.where(seen, 0, least).astype(np.float32).reshape(-1, 1, tokens, past + tokens)


def added(past: np.ndarray, fresh: np.ndarray, slots: tuple[int, ...]) -> np.ndarray:
    """A cache with new tokens (batch, groups, tokens, width) in their slots, or behind it where there are none."""
    if not slots:
        return np.concatenate([past, fresh], axis=2)
    present = past.copy()
    present[:, :, list(slots)] = fresh
    return present


IN_PLACE = [
    (2, 1, 2, 1, 16, 9, 2, "padded", (8,), True), (1, 2, 4, 6, 32, 40, 3, "drawn", (5, 8, 9, 39, 0, -2), True),
]  # fmt: skip
CASES = [
    (1, 2, 2, 4, 64, 70, 3, "causal", (), False), (2, 1, 3, 5, 32, 31, 1, "padded", (), False),
    (1, 1, 1, 16, 128, 33, 2, "drawn", (), False), (2, 2, 4, 3, 16, 0, 1, "causal", (), False),
    (1, 2, 8, 3, 32, 40, 4, "drawn", (5, -3, 6), False), *IN_PLACE,
]  # fmt: skip
# Several tiles a warp, some of them whole, and rows of masks of odd and even length.
LONG = [
    (1, 2, 1, 1, 128, 300, 2, "causal", (299,), True), (2, 2, 4, 1, 64, 251, 3, "drawn", (100,), True),
    (1, 1, 1, 3, 128, 189, 1, "padded", (7, 88, 89), True), (2, 1, 4, 2, 64, 301, 2, "drawn", (), False),
    (1, 1, 5, 3, 80, 222, 2, "padded", (), False),
]  # fmt: skip
# A slot that two tokens have, of whom the last counts; one that holds no number before; a cache that is empty.
TWICE = [
    (1, 2, 2, 3, 64, 70, 2, "drawn", (40, 69, 40), True), (1, 1, 1, 1, 128, 0, 1, "causal", (), False),
    (1, 1, 7, 1, 64, 33, 2, "drawn", (32,), False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "batch", "groups", "heads", "tokens", "width", "past", "splits", "form", "slots", "in_place"),
    [(call, *case) for call in ("tiles", "lanes") for case in CASES]
    + [("tiles", *case) for case in LONG]
    + [("registers", *case) for case in (*CASES, *LONG, *TWICE) if case[4] in (64, 128) and case[2] * case[3] <= 8],
)
def test_several_tokens_attention(
    tmp_path: Path, call: str, batch: int, groups: int, heads: int, tokens: int, width: int, past: int, splits: int,
    form: str, slots: tuple[int, ...], in_place: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(past + tokens)
    stored = np.float16 if call != "lanes" else np.float32
    q = rng.standard_normal((batch, tokens, groups, heads, width)).astype(stored)
    k, v = rng.standard_normal((2, batch, tokens, groups, width)).astype(stored)
    past_k, past_v = rng.standard_normal((2, batch, groups, past, width)).astype(stored)
    before = past - tokens if slots else past
    mask = masks(rng, form, batch, groups * heads, tokens, before, MIN[call]).astype(stored)
    given = {"q": q, "k": k, "v": v, "past_k": past_k, "past_v": past_v, "mask": mask}
    for name, value in (given | {"slots": np.array(slots or [0] * tokens)}).items():
        value.tofile(tmp_path / name)
    keys, values = (added(c, x.transpose(0, 2, 1, 3), slots) for c, x in ((past_k, k), (past_v, v)))
    keys_of_all = keys.shape[2]
    scores = 0.25 * np.einsum("bsghw,bgtw->bghst", q.astype(np.float64), keys)
    scores += mask.reshape(len(mask), -1, 1 if mask.shape[1] == 1 else heads, tokens, keys_of_all)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    output = np.einsum("bghst,bgtw->bsghw", weights, values)
    expected = {"output": output, "joined": output, "present_k": keys, "present_v": values}
    rows = rows_of_a_block(tokens, heads)
    strides = (
        0 if len(mask) == 1 else mask[0].size, 0 if mask.shape[1] == 1 else tokens * keys_of_all, keys_of_all,
    )  # fmt: skip
    filled = {
        "batch": batch, "groups": groups, "heads": heads, "tokens": tokens, "width": width, "past": past, "rows": rows,
        "chunks": -(-tokens * heads // rows), "splits": splits, "split_tokens": -(-keys_of_all // splits),
        "keys": keys_of_all, "in_slots": str(bool(slots)).lower(), "in_place": str(in_place).lower(),
        "threads": 64, "scale": 0.25, "stored": "unsigned short" if call != "lanes" else "float",
        "dtype": "float16" if call != "lanes" else "float",
        "call": CALLS[call].format(threads=64, stages=1 + tokens % 3, slots=str(bool(slots)).lower()),
        "mask": mask.size, "strides": ", ".join(map(str, strides)),
    }  # fmt: skip
    emulated.run(tmp_path, _MAIN % filled)
    for name, value in expected.items():
        found = np.fromfile(tmp_path / name, stored).reshape(value.shape)
        exact = call == "lanes" or name.startswith("present")
        np.testing.assert_allclose(
            found, value, rtol=2e-5 if exact else 2e-3, atol=2e-6 if exact else 1e-3, err_msg=name
        )


def test_entry_points_of_caches_with_room() -> None:
    """Up to two rows have an entry point with tensor cores, for long caches; more have one for every GPU. Heads of 64
    and 128 elements have keys in registers there, up to 8 rows."""
    symbols = {}
    for width, heads, tokens in ((32, 1, 1), (32, 2, 1), (32, 1, 3), (32, 4, 2), (64, 1, 1), (128, 4, 2), (128, 3, 3)):
        meaning = TokenAttention(
            ((*("float16",) * 6, SLOTS)), ("float16",) * 3, heads, 1, width, 1.0, 0, 1, 2, 3, 4, tokens, 5, 6
        )
        meaning.verify()
        symbols[width, heads * tokens] = [v.symbol.removeprefix("k_") for v in cuda.entry_points("k", meaning)]
    few = ["attend_t256s2", "attend_t256s0", "join"]
    assert symbols == {
        (32, 1): few, (32, 2): few, (32, 3): ["attend_t256s2", "join"], (32, 8): ["attend_t256s2", "join"],
        (64, 1): ["attend_t256r", "attend_t256s0", "join"], (128, 8): ["attend_t256r", "join"],
        (128, 9): ["attend_t256s2", "attend_t128s2", "attend_t128s1", "join"],
    }  # fmt: skip


def test_it_compiles_without_spilling() -> None:
    text = ['#include "attention/masked_attention.cuh"', "namespace onnxopt {"]
    forms = (("float16", 128, 8, 16), ("bfloat16", 256, 4, 3), ("float16", 128, 1, 1), ("bfloat16", 64, 4, 2))
    for number, (dtype, width, heads, tokens) in enumerate(forms):
        stored = ((dtype,) * 6, (dtype,) * 3) if number == 1 else ((*(dtype,) * 6, SLOTS), (dtype,) * 3)
        slots = None if number == 1 else 6
        meaning = TokenAttention(*stored, heads, 1, width, 1.0, 0, 1, 2, 3, 4, tokens, 5, slots)
        meaning.verify()
        name = f"k{number}"
        text += cuda.lines(Kernel(name, ATTENTION, (), meaning, cuda.entry_points(name, meaning), ()))
    compiled = nvrtc.compiled("\n".join([*text, "}"]), ("sm_75", "sm_90"))
    for arch, usage in compiled.usage.items():
        assert len(usage) == 13, arch
        assert all(kernel.spilled == 0 for kernel in usage.values()), (arch, usage)
