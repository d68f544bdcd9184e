// Moving elements whatever they mean: only their size counts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onnxopt {

// Calls body(T{}) for the unsigned integer T of `size` bytes: 1, 2, 4 or 8, as storage dtypes have.
template <typename Body>
void WithElementOf(std::size_t size, Body&& body) {
  switch (size) {
    case 1:
      return body(std::uint8_t{});
    case 2:
      return body(std::uint16_t{});
    case 4:
      return body(std::uint32_t{});
    default:
      return body(std::uint64_t{});
  }
}

}  // namespace onnxopt
