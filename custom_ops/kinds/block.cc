#include "cpu/block.h"

#include "call/block_shapes.h"
#include "cuda/convolution/block.h"
#include "kernel_file/block.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class BlockKind final : public Kind {
 public:
  const char* name() const override { return "block"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadBlock(json, kernel->inputs, kernel->outputs));
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& /*kernel*/) const override {
    json.Fail("is an entry point of a block of convolutions, which has none");
  }

  // cuDNN runs every convolution.
  void CheckVariants(const JsonReader& /*json*/, bool /*has_fatbin*/, Kernel* /*kernel*/) const override {}

  void InferShapes(const Kernel& kernel, OrtShapeInferContext* context) const override {
    onnxopt::InferShapes(kernel.meaning.As<Block>(), context);
  }

  std::unique_ptr<FusedKernel> MakeCpu(const Kernel& kernel) const override {
    return std::make_unique<BlockCpuKernel>(kernel);
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::BlockCudaKernel>(kernel, library, info);
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

const Kind& Block() {
  static const BlockKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
