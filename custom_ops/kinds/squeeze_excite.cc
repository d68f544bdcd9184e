#include "kernel_file/squeeze_excite.h"

#include "cuda/squeeze_excite.h"
#include "kernel_file/generated/readers.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class SqueezeExciteKind final : public Kind {
 public:
  const char* name() const override { return "squeeze_excite"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadSqueezeExcite(json, kernel->inputs, kernel->outputs));
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    return ReadSqueezeExciteVariant(json, kernel.meaning.As<onnxopt::SqueezeExcite>());
  }

  void CheckVariants(const JsonReader& json, bool has_fatbin, Kernel* kernel) const override {
    if (!has_fatbin) return;
    CheckSqueezeExciteVariants(json, kernel->meaning.As<onnxopt::SqueezeExcite>(), kernel->variants);
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::SqueezeExciteCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& SqueezeExcite() {
  static const SqueezeExciteKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
