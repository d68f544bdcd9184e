// A kind whose every kernel is a call of cuDNN.
#pragma once

#include "cuda/convolution/cudnn.h"
#include "kinds/kind.h"

namespace onnxopt {

class CudnnKind : public Kind {
 public:
  Variant ReadVariant(const JsonReader& json, const Kernel& /*kernel*/) const override {
    json.Fail("is an entry point of a convolution, which has none");
  }

  void CheckVariants(const JsonReader& /*json*/, bool /*has_fatbin*/, Kernel* /*kernel*/) const override {}

  std::optional<std::string> Obstacle() const override {
    const std::string missing = cudnn::Missing();
    if (missing.empty()) return std::nullopt;
    return missing + "; convolutions run as ONNX Runtime runs them";
  }

  bool RunsWithoutFatbin(const Kernel& /*kernel*/) const override { return true; }
};

}  // namespace onnxopt
