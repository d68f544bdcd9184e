// Products of few rows by entry points of ours, which are bound by the weights and read them faster than cuBLASLt's do.
#pragma once

#include <cstddef>

#include "call/gemm.h"
#include "cuda/gemm/product_key.h"
#include "cuda/launch/launcher.h"
#include "kernel_file/kernel.h"
#include "program/gemm.h"

namespace onnxopt::cuda {

class FewRowsProducts {
 public:
  // kernel, launcher: of a gemm; both outlive this. b_is_constant: whether no other kernel writes the weight.
  FewRowsProducts(const Kernel& kernel, const Launcher& launcher, bool b_is_constant);

  // Enqueues the product with its epilogue. False where no entry point fits. The context is current.
  bool Run(const Product& product, const Operands& at, Stream stream) const;

 private:
  std::size_t Choose(const Product& product) const;

  const Kernel& kernel_;
  const Gemm& gemm_;
  const Launcher& launcher_;
  const bool b_is_constant_;
};

}  // namespace onnxopt::cuda
