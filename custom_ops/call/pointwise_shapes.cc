#include "call/pointwise_shapes.h"

#include "call/dims.h"

namespace onnxopt {
namespace {

std::optional<Dims> OutputDims(const Program& program, std::size_t k, const std::vector<std::optional<Dims>>& inputs) {
  if (program.index) return IndexedDims(*program.index, k, inputs);
  Dims dims(program.ranks[k]);
  for (const std::uint32_t d : program.depends[k]) {
    if (!inputs[d]) return std::nullopt;
    const Dims& other = *inputs[d];
    if (other.size() > dims.size()) dims.insert(dims.begin(), other.size() - dims.size(), Dim{});
    const std::size_t first = dims.size() - other.size();
    for (std::size_t i = 0; i < other.size(); ++i) dims[first + i] = Broadcast(dims[first + i], other[i]);
  }
  return dims;
}

}  // namespace

void InferShapes(const Program& program, OrtShapeInferContext* context) {
  const std::vector<std::optional<Dims>> inputs = InputDims(context, program.inputs.size());
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    const std::optional<Dims> dims = OutputDims(program, k, inputs);
    if (!dims || dims->empty()) continue;
    SetOutputDims(context, k, program.outputs[k], *dims);
  }
}

}  // namespace onnxopt
