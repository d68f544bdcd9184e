#include "cuda/convolution/block.h"

#include "kernel_file/generated/readers.h"
#include "kinds/cudnn_kind.h"

namespace onnxopt {
namespace {

class BlockKind final : public CudnnKind {
 public:
  const char* name() const override { return "block"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadBlock(json, kernel->inputs, kernel->outputs));
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::BlockCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& Block() {
  static const BlockKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
