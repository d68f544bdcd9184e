// Products with an activation that cuBLASLt does not have: of many rows by entry points for Hopper, which store the
// result once, and the activation in place behind all others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "call/gemm.h"
#include "cuda/gemm/product_key.h"
#include "cuda/launch/launcher.h"
#include "kernel_file/variants.h"
#include "program/gemm.h"

namespace onnxopt::cuda {

class LargeProducts {
 public:
  // kernel, launcher: of a gemm with such an activation. All outlive this.
  LargeProducts(const Kernel& kernel, const Driver& driver, const Launcher& launcher);

  // Enqueues the product with its epilogue. False where no entry point fits, or cuBLASLt's product with the activation
  // behind it is expected to take less time. The context is current.
  bool Run(const Product& product, const Operands& at, bool tf32, Stream stream) const;

  // Enqueues the activation of so many elements.
  void Activate(void* output, std::uint64_t count, Stream stream) const;

 private:
  std::size_t Choose(const Product& product) const;
  bool Fits(const Product& product, const Operands& at) const;

  const Kernel& kernel_;
  const Gemm& gemm_;
  const Driver& driver_;
  const Launcher& launcher_;
};

}  // namespace onnxopt::cuda
