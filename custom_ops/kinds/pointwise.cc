#include "cpu/pointwise.h"

#include "cuda/pointwise.h"
#include "kernel_file/pointwise.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class PointwiseKind final : public Kind {
 public:
  const char* name() const override { return "pointwise"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override { kernel->meaning.Set(ReadProgram(json)); }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    return ReadPointwiseVariant(json, kernel.meaning.As<Program>());
  }

  bool HasCpuKernels() const override { return true; }

  std::unique_ptr<FusedKernel> MakeCpu(const Kernel& kernel) const override {
    return std::make_unique<CpuKernel>(kernel);
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* /*info*/) const override {
    return std::make_unique<cuda::CudaKernel>(kernel, library);
  }

  // One launch, in which every thread loads what it needs at an index before it stores there.
  bool MayRunInPlace(const Kernel& kernel) const override {
    const auto& program = kernel.meaning.As<Program>();
    if (program.index) return false;
    for (std::size_t k = 1; k < program.depends.size(); ++k) {
      // Another shape means another launch.
      if (program.depends[k] != program.depends[0] || program.ranks[k] != program.ranks[0]) return false;
    }
    return true;
  }
};

}  // namespace

namespace kinds {

const Kind& Pointwise() {
  static const PointwiseKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
