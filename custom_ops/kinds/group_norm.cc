#include "cuda/group_norm.h"

#include "kernel_file/generated/readers.h"
#include "kernel_file/group_norm.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class GroupNormKind final : public Kind {
 public:
  const char* name() const override { return "group_norm"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadGroupNorm(json, kernel->inputs, kernel->outputs));
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    return ReadGroupNormVariant(json, kernel.meaning.As<onnxopt::GroupNorm>());
  }

  void CheckVariants(const JsonReader& json, bool has_fatbin, Kernel* kernel) const override {
    CheckLaunches(kernel->variants, json);
    Kind::CheckVariants(json, has_fatbin, kernel);
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::GroupNormCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& GroupNorm() {
  static const GroupNormKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
