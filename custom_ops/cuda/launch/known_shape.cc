#include "cuda/launch/known_shape.h"

#include <algorithm>
#include <memory>

namespace onnxopt::cuda {

std::optional<Shape> KnownShape(const OrtKernelInfo* info, std::size_t input) {
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
  const bool known = std::all_of(shape.dims, shape.dims + shape.rank, [](std::int64_t dim) { return dim > 0; });
  return known ? std::optional<Shape>(shape) : std::nullopt;
}

}  // namespace onnxopt::cuda
