#include "call/block_shapes.h"

#include "call/window_dims.h"

namespace onnxopt {

void InferShapes(const Block& block, OrtShapeInferContext* context) {
  std::vector<std::optional<Dims>> dims = InputDims(context, block.inputs);
  dims.resize(block.inputs + block.channels.size());
  for (const BlockStep& step : block.steps) {
    const std::optional<Dims>& x = dims[step.x.tensor];
    std::optional<Dims>& y = dims[step.y.tensor];
    if (!x || x->size() != 4 || y) continue;
    const Window& window = step.convolution.window;
    const std::int64_t channels = block.channels[step.y.tensor - block.inputs];
    y = Dims{(*x)[0], Behind(window, 0, (*x)[1]), Behind(window, 1, (*x)[2]), {channels, ""}};
  }
  for (std::size_t k = 0; k < block.outputs; ++k) {
    const std::optional<Dims>& found = dims[block.inputs + k];
    if (found) SetOutputDims(context, k, block.dtype, *found);
  }
}

}  // namespace onnxopt
