// One product: what the choice of how to run it depends on, and where its operands lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "program/dtype.h"

namespace onnxopt::cuda {

// What the choice of an algorithm depends on, besides the kernel.
struct PlanKey {
  std::int64_t m, n, k, batch, stride_a, stride_b, stride_d, ldb;
  unsigned alignment_a, alignment_b, alignment_c, alignment_d;  // bytes, a power of 2 up to 256
  bool tf32;                                                    // float32 products may round their operands to TF32
  bool workspace;                                               // there may be one
  Dtype operands;                                               // of a and b

  bool operator==(const PlanKey& other) const;
};

// Arguments of one product, in row-major terms: b is what cuBLASLt, which is column-major, calls A.
struct Operands {
  const void* a;
  const void* b;
  const void* bias;      // or nullptr
  const void* residual;  // or nullptr
  void* output;
};

// What an address, or a distance in bytes, is a multiple of: a power of 2 up to 256.
inline unsigned Alignment(std::uintptr_t address) {
  constexpr unsigned kBest = 256;
  const std::uintptr_t bits = address | kBest;
  return static_cast<unsigned>(bits & (~bits + 1));
}

inline unsigned Alignment(const void* data) { return Alignment(reinterpret_cast<std::uintptr_t>(data)); }

// Gives device memory of so many bytes until a call ends.
using Scratch = std::function<void*(std::size_t bytes)>;

// What cuBLAS itself takes on Hopper; what wants more is not considered.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20U;

}  // namespace onnxopt::cuda
