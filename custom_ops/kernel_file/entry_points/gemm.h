// Gemm kernels in kernels.json.
#pragma once

#include "kernel_file/kernel.h"
#include "program/gemm.h"
#include "support/json_reader.h"

namespace onnxopt {

// What only entry points for few rows have: rows of the product, at most, and columns of it that a warp takes.
struct FewRows {
  unsigned rows = 0;
  std::uint64_t columns = 0;
};

// What an entry point of a product with codes does: it computes few rows from the codes, turns the weight into floats,
// or multiplies the halves of a product of these.
enum class PackedRole : std::uint8_t { kCodes, kFloats, kGate };

// What only entry points of products with codes have. For kCodes: rows of the product, at most, and columns of the
// result that a block takes.
struct PackedRows {
  PackedRole role = PackedRole::kCodes;
  unsigned rows = 0;
  std::uint64_t columns = 0;
};

// What only entry points of products of many rows have: columns of the result that a block computes at once.
struct LargeTile {
  std::int64_t columns = 0;
};

// Of the entry point that computes an activation alone, in place.
struct ActivationInPlace {};

Variant ReadGemmVariant(const JsonReader& json, const Gemm& gemm);

// Those for few rows are optional: cuBLASLt runs every product of floats. Of codes, the one that widens is the first.
// Without a fatbin there are none afterwards.
void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Gemm& gemm, std::vector<Variant>* variants);

}  // namespace onnxopt
