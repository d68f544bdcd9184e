#include "call/dims.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

namespace onnxopt {
namespace {

// The dim that an extent is, from those of the inputs.
Dim IndexedDim(const Indexing& index, const Extent& extent, const std::vector<std::optional<Dims>>& inputs) {
  Dim dim;
  dim.extent = extent.factor;
  for (const std::uint32_t s : extent.symbols) {
    const Symbol& symbol = index.symbols[s];
    const auto& dims = inputs[symbol.input];
    if (!dims || symbol.axis >= dims->size()) return {-1, FreshDimName()};
    const bool alone = dim.extent == 1 && extent.symbols.size() == 1;
    dim = alone ? (*dims)[symbol.axis] : Times(dim, (*dims)[symbol.axis]);
  }
  return dim;
}

class OutputInfo {
 public:
  OutputInfo() { Check(Ort().CreateTensorTypeAndShapeInfo(&info_)); }
  OutputInfo(const OutputInfo&) = delete;
  OutputInfo& operator=(const OutputInfo&) = delete;
  ~OutputInfo() { Ort().ReleaseTensorTypeAndShapeInfo(info_); }

  void Set(Dtype dtype, const Dims& dims) {
    std::vector<std::int64_t> extents;
    std::vector<const char*> symbols;
    for (const Dim& dim : dims) {
      extents.push_back(dim.extent);
      symbols.push_back(dim.symbol.c_str());
    }
    Check(Ort().SetTensorElementType(info_, static_cast<ONNXTensorElementDataType>(Row(dtype).element)));
    Check(Ort().SetDimensions(info_, extents.data(), extents.size()));
    Check(Ort().SetSymbolicDimensions(info_, symbols.data(), symbols.size()));
  }

  OrtTensorTypeAndShapeInfo* get() { return info_; }

 private:
  OrtTensorTypeAndShapeInfo* info_ = nullptr;
};

}  // namespace

std::string FreshDimName() {
  static std::atomic<std::uint64_t> names{0};
  return "onnxopt_unknown_" + std::to_string(names.fetch_add(1, std::memory_order_relaxed));
}

static std::optional<Dims> DimsOfInput(OrtShapeInferContext* context, std::size_t k) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(Ort().ShapeInferContext_GetInputTypeShape(context, k, &info));  // owned by the context
  std::size_t rank = 0;
  Check(Ort().GetDimensionsCount(info, &rank));
  if (rank == 0) return std::nullopt;
  std::vector<std::int64_t> extents(rank);
  std::vector<const char*> symbols(rank);
  Check(Ort().GetDimensions(info, extents.data(), rank));
  Check(Ort().GetSymbolicDimensions(info, symbols.data(), rank));
  Dims dims(rank);
  for (std::size_t d = 0; d < rank; ++d) {
    if (extents[d] >= 0) {
      dims[d].extent = extents[d];
    } else {
      const bool named = symbols[d] != nullptr && symbols[d][0] != '\0';
      dims[d] = {-1, named ? symbols[d] : FreshDimName()};
    }
  }
  return dims;
}

std::vector<std::optional<Dims>> InputDims(OrtShapeInferContext* context, std::size_t expected) {
  std::size_t count = 0;
  Check(Ort().ShapeInferContext_GetInputCount(context, &count));
  if (count != expected) {
    throw Error("the node has " + std::to_string(count) + " inputs, kernels.json has " + std::to_string(expected) +
                "; model and library belong to different artifacts");
  }
  std::vector<std::optional<Dims>> inputs;
  inputs.reserve(count);
  for (std::size_t k = 0; k < count; ++k) inputs.push_back(DimsOfInput(context, k));
  return inputs;
}

Dim Times(const Dim& a, const Dim& b) {
  std::int64_t product = 0;
  const bool fits = a.extent >= 0 && b.extent >= 0 && !__builtin_mul_overflow(a.extent, b.extent, &product);
  return fits ? Dim{product, ""} : Dim{-1, FreshDimName()};
}

Dim Broadcast(const Dim& a, const Dim& b) {
  if (a.extent == 1) return b;
  if (b.extent == 1) return a;
  if (a.extent >= 0 && b.extent >= 0 && a.extent != b.extent) return {-1, FreshDimName()};
  if (a.extent >= 0) return a;
  if (b.extent >= 0) return b;
  if (a.symbol == b.symbol) return a;
  const auto [first, second] = std::minmax(a.symbol, b.symbol);
  return {-1, "broadcast(" + first + "," + second + ")"};
}

void SetOutputDims(OrtShapeInferContext* context, std::size_t k, Dtype dtype, const Dims& dims) {
  OutputInfo info;
  info.Set(dtype, dims);
  Check(Ort().ShapeInferContext_SetOutputTypeShape(context, k, info.get()));
}

Dims IndexedDims(const Indexing& index, std::size_t k, const std::vector<std::optional<Dims>>& inputs) {
  Dims dims;
  for (const Extent& e : index.shapes[k]) dims.push_back(IndexedDim(index, e, inputs));
  return dims;
}

}  // namespace onnxopt
