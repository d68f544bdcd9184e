"""GELU in 16 bits: one function without cancellation, over every float16 and bfloat16."""

from __future__ import annotations

from pathlib import Path

from tests.support.emulation import emulated

_MAIN = """
#include <cmath>
#include <cstdio>
#include "device/approximate.cuh"
using namespace onnxopt;

// x (1 + erf(c x)) / 2
double exact(double x, double c) { return std::isinf(x) && x < 0 ? NAN : 0.5 * x * std::erfc(-c * x); }

bool right(float x, float c) {
  const float found = approximate::gelu(x, c);
  const double wanted = exact(x, c);
  if (!std::isfinite(wanted)) return std::isnan(wanted) ? std::isnan(found) : found == wanted;
  const double size = std::fabs(wanted) * c * std::sqrt(2.0), error = std::fabs(found - wanted);
  return error <= (size >= 0x1p-18 ? std::fabs(wanted) * 0x1p-15 : 0x1p-26);
}

// Steps of float16, whose least is 2^-24, between what the number and its nearest float16 are.
bool half_is_right(float x, float c) {
  const double wanted = exact(x, c), found = widen(Narrow<float16>::from(approximate::gelu(x, c)));
  if (!std::isfinite(wanted) || std::fabs(wanted) >= 65520) return true;
  const double step = std::fmax(std::ldexp(1.0, std::ilogb(wanted == 0 ? 1e-30 : wanted) - 10), 0x1p-24);
  return std::fabs(found - wanted) <= 0.54 * step;
}

int main() {
  for (const float c : {0.5f, 0.70703125f, 0.70710677f, 0.70718235f, 1.0f}) {
    for (unsigned bits = 0; bits < 65536; ++bits) {
      const uint16_t stored = static_cast<uint16_t>(bits);
      const float half = widen(float16{stored}), brain = widen(bfloat16{stored});
      if (!right(half, c) || !half_is_right(half, c) || !right(brain, c)) {
        std::fprintf(stderr, "%a %a: %a %a\\n", half, brain, approximate::gelu(half, c), approximate::gelu(brain, c));
        return 1;
      }
    }
  }
  return 0;
}
"""


def test_error(tmp_path: Path) -> None:
    """Below 2^-15 of the result from 2^-18 on, below 2^-26 elsewhere: 0.54 steps of float16 with its own rounding."""
    emulated.run(tmp_path, _MAIN)
