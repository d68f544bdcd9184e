#include "cuda/image_convolution.h"

#include "kernel_file/generated/readers.h"
#include "kernel_file/image_convolution.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class ImageConvolutionKind final : public Kind {
 public:
  const char* name() const override { return "image_convolution"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadImageConvolution(json, kernel->inputs, kernel->outputs));
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    return ReadImageVariant(json, kernel.meaning.As<onnxopt::ImageConvolution>());
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::ImageConvolutionCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& ImageConvolution() {
  static const ImageConvolutionKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
