#include "cuda/attention.h"

#include "kernel_file/attention.h"
#include "kernel_file/generated/readers.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class AttentionKind final : public Kind {
 public:
  const char* name() const override { return "attention"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadTokenAttention(json, kernel->inputs, kernel->outputs));
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    return ReadAttentionVariant(json, kernel.meaning.As<TokenAttention>());
  }

  void CheckVariants(const JsonReader& json, bool has_fatbin, Kernel* kernel) const override {
    if (has_fatbin && kernel->variants.size() < kAttentionLaunches) json.Fail("are not the two launches");
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::TokenAttentionCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& Attention() {
  static const AttentionKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
