#include "cuda/pool.h"

#include "kernel_file/generated/readers.h"
#include "kernel_file/pool.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class PoolKind final : public Kind {
 public:
  const char* name() const override { return "pool"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadPool(json, kernel->inputs, kernel->outputs));
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    return ReadPoolVariant(json, kernel.meaning.As<Pool>());
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::PoolCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& Pool() {
  static const PoolKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
