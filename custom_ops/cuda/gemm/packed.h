// Products with weights of 2, 4 or 8 bits: of few rows by kernels that read the codes, and the weights as floats for
// others.
#pragma once

#include "cuda/gemm/product_plan.h"
#include "cuda/launch/launcher.h"
#include "kernel_file/variants.h"
#include "program/gemm.h"

namespace onnxopt::cuda {

// A weight of codes, from some column on.
struct PackedWeight {
  const void* codes;
  const void* scales;
  const void* zeros;  // or nullptr

  // From another column on, whose bytes and groups are those of a depth.
  PackedWeight From(const Gemm& gemm, std::int64_t column, std::int64_t depth) const;
};

// Few rows of a, which may be those of several matrices: m x k times n columns, twice as many with a gate.
struct PackedRowsCall {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  bool constant;  // nothing on the stream writes the weight
};

class PackedProducts {
 public:
  // kernel, launcher: of a gemm with codes; both outlive this.
  PackedProducts(const Kernel& kernel, const Launcher& launcher);

  // Enqueues the product with its epilogue. False where no entry point fits. The first column of the whole weight has
  // scales and zero points at multiples of 16 bytes.
  bool Run(const PackedRowsCall& call, const Operands& at, const PackedWeight& weight, Stream stream) const;

  // Enqueues multiplying the halves of a product's columns: halves [m, 2 n], output [m, n].
  void Gate(std::int64_t m, std::int64_t n, const void* halves, void* output, Stream stream) const;

  // Enqueues writing the weight as floats, [n, k].
  void Widen(std::int64_t n, std::int64_t k, const PackedWeight& weight, void* floats, Stream stream) const;

 private:
  std::size_t Choose(const PackedRowsCall& call) const;
  std::size_t Only(PackedRole role) const;

  const Kernel& kernel_;
  const Gemm& gemm_;
  const Launcher& launcher_;
};

}  // namespace onnxopt::cuda
