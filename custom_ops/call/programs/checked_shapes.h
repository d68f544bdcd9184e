// Shapes of calls of one kernel whose accesses were found inside of their inputs, so that they are not checked again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "program/shape.h"

namespace onnxopt {

// A small table of 64-bit hashes, which forgets. May be used by several threads at once.
class CheckedShapes {
 public:
  // Of all ranks and dims. Never 0, which is an empty place of the table.
  static std::uint64_t Key(const Shape* shapes, std::size_t count) {
    std::uint64_t key = 0;
    for (std::size_t k = 0; k < count; ++k) {
      key = Mixed(key + shapes[k].rank);
      for (std::size_t d = 0; d < shapes[k].rank; ++d) key = Mixed(key + static_cast<std::uint64_t>(shapes[k].dims[d]));
    }
    return key | 1U;
  }

  bool Has(std::uint64_t key) const { return Place(key).load(std::memory_order_relaxed) == key; }
  void Add(std::uint64_t key) const { Place(key).store(key, std::memory_order_relaxed); }

 private:
  static constexpr unsigned kPlaceBits = 5;

  // A bijection: multiplication by an odd number, and the high half into the low one.
  static std::uint64_t Mixed(std::uint64_t x) {
    x = (x + 0x9e3779b97f4a7c15U) * 0xbf58476d1ce4e5b9U;
    return x ^ x >> 32U;
  }

  std::atomic<std::uint64_t>& Place(std::uint64_t key) const { return key_[key >> (64 - kPlaceBits)]; }

  mutable std::atomic<std::uint64_t> key_[std::size_t{1} << kPlaceBits] = {};
};

}  // namespace onnxopt
