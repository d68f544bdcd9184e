#include "cpu/convolution.h"

#include "call/convolution_shapes.h"
#include "cuda/convolution/kernel.h"
#include "kernel_file/convolution.h"
#include "kernel_file/fields.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class ConvolutionKind final : public Kind {
 public:
  const char* name() const override { return "convolution"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadConvolution(json, kernel->inputs, kernel->outputs));
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& /*kernel*/) const override {
    json.Fail("is an entry point of a convolution, which has none");
  }

  // cuDNN runs every convolution.
  void CheckVariants(const JsonReader& /*json*/, bool /*has_fatbin*/, Kernel* /*kernel*/) const override {}

  void InferShapes(const Kernel& kernel, OrtShapeInferContext* context) const override {
    onnxopt::InferShapes(kernel.meaning.As<Convolution>(), context);
  }

  std::unique_ptr<FusedKernel> MakeCpu(const Kernel& kernel) const override {
    return std::make_unique<ConvolutionCpuKernel>(kernel);
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::ConvolutionCudaKernel>(kernel, library, info);
  }

  std::optional<std::string> Obstacle() const override {
    const std::string missing = cudnn::Missing();
    if (missing.empty()) return std::nullopt;
    return missing + "; convolutions run as ONNX Runtime runs them";
  }

  bool runs_without_fatbin() const override { return true; }
};

}  // namespace

namespace kinds {

const Kind& Convolution() {
  static const ConvolutionKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
