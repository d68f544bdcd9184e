#include "cpu/rowwise.h"

#include "cuda/rowwise.h"
#include "kernel_file/rowwise.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class RowwiseKind final : public Kind {
 public:
  const char* name() const override { return "rowwise"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override { kernel->meaning.Set(ReadRowProgram(json)); }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    const auto& program = kernel.meaning.As<RowProgram>();
    return ReadRowVariant(json, program, program.launches());
  }

  void CheckVariants(const JsonReader& json, bool has_fatbin, Kernel* kernel) const override {
    CheckPasses(kernel->variants, kernel->meaning.As<RowProgram>().launches(), json);
    Kind::CheckVariants(json, has_fatbin, kernel);
  }

  bool HasCpuKernels() const override { return true; }

  std::unique_ptr<FusedKernel> MakeCpu(const Kernel& kernel) const override {
    return std::make_unique<RowCpuKernel>(kernel);
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::RowCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& Rowwise() {
  static const RowwiseKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
