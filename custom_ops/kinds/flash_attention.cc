#include "cuda/flash_attention.h"

#include "kernel_file/flash_attention.h"
#include "kernel_file/generated/readers.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class FlashAttentionKind final : public Kind {
 public:
  const char* name() const override { return "flash_attention"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadFlashAttention(json, kernel->inputs, kernel->outputs));
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    return ReadFlashVariant(json, kernel.meaning.As<onnxopt::FlashAttention>());
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::FlashAttentionCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& FlashAttention() {
  static const FlashAttentionKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
