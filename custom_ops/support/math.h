// Division that rounds up, and alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace onnxopt {

// n / d, rounded up, for n >= 0 and d > 0. Never overflows.
template <typename N, typename D>
constexpr std::uint64_t CeilDiv(N n, D d) {
  const auto whole = static_cast<std::uint64_t>(n);
  const auto part = static_cast<std::uint64_t>(d);
  return whole / part + (whole % part != 0 ? 1 : 0);
}

// The first multiple of `step` that is not below n, for n >= 0 and step > 0.
template <typename N, typename D>
constexpr N RoundUp(N n, D step) {
  return static_cast<N>(CeilDiv(n, step) * static_cast<std::uint64_t>(step));
}

inline bool IsAligned(const void* data, std::uint64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

inline bool AreAligned(std::initializer_list<const void*> data, std::uint64_t bytes) {
  for (const void* each : data) {
    if (!IsAligned(each, bytes)) return false;
  }
  return true;
}

}  // namespace onnxopt
