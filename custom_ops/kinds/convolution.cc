#include "cuda/convolution/kernel.h"
#include "kernel_file/generated/readers.h"
#include "kinds/cudnn_kind.h"

namespace onnxopt {
namespace {

class ConvolutionKind final : public CudnnKind {
 public:
  const char* name() const override { return "convolution"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadConvolution(json, kernel->inputs, kernel->outputs));
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::ConvolutionCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& Convolution() {
  static const ConvolutionKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
