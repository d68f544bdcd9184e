#include "cuda/launch/stated_shape.h"

#include <algorithm>
#include <memory>

namespace onnxopt::cuda {

std::optional<Shape> StatedShape(const OrtKernelInfo* info, std::size_t input) {
  OrtTypeInfo* type = nullptr;
  Check(Ort().KernelInfo_GetInputTypeInfo(info, input, &type));
  const std::unique_ptr<OrtTypeInfo, void (*)(OrtTypeInfo*)> kept(type, Ort().ReleaseTypeInfo);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  Check(Ort().CastTypeInfoToTensorInfo(type, &tensor));
  Shape shape{};
  if (tensor == nullptr) return std::nullopt;
  Check(Ort().GetDimensionsCount(tensor, &shape.rank));
  if (shape.rank == 0 || shape.rank > kMaxRank) return std::nullopt;
  Check(Ort().GetDimensions(tensor, shape.dims, shape.rank));
  const bool is_stated = std::all_of(shape.dims, shape.dims + shape.rank, [](std::int64_t dim) { return dim > 0; });
  return is_stated ? std::optional<Shape>(shape) : std::nullopt;
}

StatedShapes::StatedShapes(const Kernel& kernel, const OrtKernelInfo* info) {
  std::vector<Shape> of_graph;
  for (std::size_t k = 0; k < kernel.inputs.size(); ++k) {
    const std::optional<Shape> shape = StatedShape(info, k);
    if (shape) of_graph.push_back(*shape);
  }
  alone_ = of_graph.size() == kernel.inputs.size();
  all_ = alone_ ? std::vector<std::vector<Shape>>{of_graph} : kernel.usual;
}

}  // namespace onnxopt::cuda
