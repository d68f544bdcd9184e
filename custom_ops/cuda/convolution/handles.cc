#include "cuda/convolution/handles.h"

#include <map>
#include <tuple>

namespace onnxopt::cuda {
namespace {

ConvolutionHandle& Make(const cudnn::Api& api, Context context, Stream stream, bool builds) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::tuple<Context, Stream, bool>, std::unique_ptr<ConvolutionHandle>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<ConvolutionHandle>& entry = (*known)[{context, stream, builds}];
  if (entry == nullptr) {
    auto made = std::make_unique<ConvolutionHandle>();
    api.Check(api.cudnnCreate(&made->raw), "cuDNN does not start on this GPU");
    if (!builds) api.Check(api.cudnnSetStream(made->raw, stream), "cuDNN does not take ONNX Runtime's stream");
    entry = std::move(made);
  }
  return *entry;
}

}  // namespace

ConvolutionHandle& HandleOf(const cudnn::Api& api, Context context, Stream stream) {
  return Make(api, context, stream, false);
}

ConvolutionHandle& BuilderOf(const cudnn::Api& api, Context context) { return Make(api, context, nullptr, true); }

}  // namespace onnxopt::cuda
