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

// The fields of a gemm kernel. Throws Error naming the place of what is not as gemm.py writes it.
Gemm ReadGemm(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs);

// The entry point that widens codes.
Variant ReadWidenVariant(const JsonReader& json);

Variant ReadFewRowsVariant(const JsonReader& json, const Gemm& gemm);

}  // namespace onnxopt
