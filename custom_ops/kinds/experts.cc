#include "kernel_file/experts.h"

#include "cuda/experts/experts.h"
#include "kernel_file/generated/readers.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class ExpertsKind final : public Kind {
 public:
  const char* name() const override { return "experts"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadExperts(json, kernel->inputs, kernel->outputs));
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& /*kernel*/) const override {
    return ReadExpertsVariant(json);
  }

  void CheckVariants(const JsonReader& json, bool has_fatbin, Kernel* kernel) const override {
    if (has_fatbin) CheckExpertsVariants(json, kernel->variants);
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::ExpertsCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& Experts() {
  static const ExpertsKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
