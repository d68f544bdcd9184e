"""cuda_kernels/device/packed.cuh against scalar.cuh: every primitive, all pairs of 8-bit integers, run by g++."""

from __future__ import annotations

from pathlib import Path

from onnxopt.program.cuda_text.statements import PACKED
from onnxopt.program.pointwise import PRIMITIVES
from tests.support.emulation import emulated

_MAIN = """
#include <cstdio>
#include "device/packed.cuh"
using namespace onnxopt;

template <typename T, typename Scalar, typename Vector>
bool agree(const char* name, const char* dtype, Scalar&& scalar, Vector&& vector) {
  for (int x = 0; x < 256; ++x) {
    for (int y = 0; y < 256; y += 4) {
      const unsigned others = 0x01010101u * y + 0x03020100u;
      const unsigned found = vector(Packed<T>{0x01010101u * x}, Packed<T>{others}).bits;
      for (int k = 0; k < 4; ++k) {
        const T expected = scalar(static_cast<T>(x), static_cast<T>(y + k));
        if (static_cast<T>(found >> (8 * k)) == expected) continue;
        std::fprintf(stderr, "%%s %%s of %%d and %%d\\n", dtype, name, x, y + k);
        return false;
      }
    }
  }
  return true;
}

int main() { return %(checks)s ? 0 : 1; }
"""


def test_packed_primitives_are_the_scalar_ones(tmp_path: Path) -> None:
    checks = []
    for name in sorted(PACKED - {"const"}):
        call = f"{name}(a{', b' * (PRIMITIVES[name].arity - 1)})"
        for dtype in ("int8_t", "uint8_t"):
            function = f"[](auto a, auto b) {{ return {call}; }}"
            checks.append(f'agree<{dtype}>("{name}", "{dtype}", {function}, {function})')
    emulated.run(tmp_path, _MAIN % {"checks": " && ".join(checks)})
