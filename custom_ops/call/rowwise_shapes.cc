#include "call/rowwise_shapes.h"

#include "call/dims.h"

namespace onnxopt {
namespace {

Dim Unknown() { return {-1, FreshDimName()}; }

std::optional<Dims> BaseDims(const RowProgram& program, const std::vector<std::optional<Dims>>& inputs) {
  Dims dims(program.views[program.base()].rank);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Operand& operand = program.operands[k];
    if (operand.view != program.base()) continue;
    if (!inputs[k]) {
      if (operand.row) continue;  // one element, or as little: another input gives the shape
      return std::nullopt;
    }
    const std::size_t rank = inputs[k]->size() + operand.trailing;
    if (rank > dims.size()) return std::nullopt;
    for (std::size_t i = 0; i < inputs[k]->size(); ++i) {
      Dim& dim = dims[dims.size() - rank + i];
      dim = Broadcast(dim, (*inputs[k])[i]);
    }
  }
  return dims;
}

// As ONNX's Reshape: 0 takes over the dim, -1 is what is left, which is known where everything else is.
Dims Reshaped(const Dims& dims, const std::vector<std::int64_t>& target) {
  Dims result;
  std::size_t open = target.size();
  Dim whole;
  Dim given;
  for (const Dim& dim : dims) whole = Times(whole, dim);
  for (std::size_t k = 0; k < target.size(); ++k) {
    if (target[k] < 0) {
      open = k;
      result.push_back(Dim{});
    } else {
      result.push_back(target[k] > 0 ? Dim{target[k], ""} : k < dims.size() ? dims[k] : Unknown());
    }
    given = Times(given, result.back());
  }
  const bool known = whole.extent >= 0 && given.extent > 0 && whole.extent % given.extent == 0;
  if (open < target.size()) result[open] = known ? Dim{whole.extent / given.extent, ""} : Unknown();
  return result;
}

Dims OutputDims(const RowProgram& program, const Result& result, const Dims* views) {
  if (result.form == Form::kElement) return views[result.view];
  Dims dims = views[0];
  const auto first = dims.begin() + static_cast<std::ptrdiff_t>(program.first);
  const auto last = dims.begin() + static_cast<std::ptrdiff_t>(program.last);
  if (result.form == Form::kSqueezed) {
    dims.erase(first, last);
  } else {
    for (auto dim = first; dim != last; ++dim) *dim = Dim{};
  }
  return dims;
}

}  // namespace

void InferShapes(const RowProgram& program, OrtShapeInferContext* context) {
  const std::vector<std::optional<Dims>> inputs = InputDims(context, program.inputs.size());
  if (program.index) {
    for (std::size_t k = 0; k < program.outputs.size(); ++k) {
      const Dims dims = IndexedDims(*program.index, k, inputs);
      if (!dims.empty()) SetOutputDims(context, k, program.outputs[k], dims);
    }
    return;
  }
  const std::optional<Dims> base = BaseDims(program, inputs);
  if (!base) return;
  Dims views[2];
  views[program.base()] = *base;
  if (program.views.size() > 1) views[1 - program.base()] = Reshaped(*base, program.views[1 - program.base()].target);
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    const Dims dims = OutputDims(program, program.results[k], views);
    if (!dims.empty()) SetOutputDims(context, k, program.outputs[k], dims);
  }
}

}  // namespace onnxopt
