#include "cuda/depthwise.h"

#include "kernel_file/depthwise.h"
#include "kernel_file/generated/readers.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class DepthwiseKind final : public Kind {
 public:
  const char* name() const override { return "depthwise"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadDepthwise(json, kernel->inputs, kernel->outputs));
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    return ReadDepthwiseVariant(json, kernel.meaning.As<onnxopt::Depthwise>());
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::DepthwiseCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& Depthwise() {
  static const DepthwiseKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
