// Division by multiplication, as kernels do it (cuda_kernels/device/abi.h).
#pragma once

#include <cstdint>

#include "device/abi.h"

namespace onnxopt {

// For dividends and divisors below 2^31; d > 0.
inline Divisor<unsigned int> MakeDivisor32(std::uint64_t d) {
  unsigned shift = 0;
  while ((std::uint64_t{1} << shift) < d) ++shift;
  const std::uint64_t multiplier = (((std::uint64_t{1} << shift) - d) << 32U) / d + 1;
  return {static_cast<unsigned int>(d), static_cast<unsigned int>(multiplier), shift};
}

}  // namespace onnxopt
