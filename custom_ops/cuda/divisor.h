// Divisors as kernels take them (device/abi.h).
#pragma once

#include <cstdint>

#include "device/abi.h"

namespace onnxopt::cuda {

// d: from 1 to 2^31.
inline Divisor<unsigned int> MakeDivisor32(std::uint64_t d) {
  unsigned shift = 0;
  while ((std::uint64_t{1} << shift) < d) ++shift;
  const std::uint64_t multiplier = (((std::uint64_t{1} << shift) - d) << 32U) / d + 1;
  return {static_cast<unsigned int>(d), static_cast<unsigned int>(multiplier), shift};
}

}  // namespace onnxopt::cuda
