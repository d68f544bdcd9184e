#include "cuda/own_convolution/choose.h"

#include "cuda/own_convolution/coded.h"
#include "cuda/own_convolution/dense.h"

namespace onnxopt::cuda {

std::unique_ptr<const OwnConvolution> MakeOwnConvolution(const Kernel& kernel, const Library& library) {
  if (kernel.variants.empty()) return nullptr;
  if (kernel.meaning.As<Convolution>().codes) return std::make_unique<const CodedConvolutions>(kernel, library);
  return std::make_unique<const DenseConvolutions>(kernel, library);
}

}  // namespace onnxopt::cuda
