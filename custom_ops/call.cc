#include "call.h"

#include <algorithm>

namespace onnxopt {
namespace {

class TensorInfo {
 public:
  explicit TensorInfo(const OrtValue* value) { Check(Ort().GetTensorTypeAndShape(value, &info_)); }
  TensorInfo(const TensorInfo&) = delete;
  TensorInfo& operator=(const TensorInfo&) = delete;
  ~TensorInfo() { Ort().ReleaseTensorTypeAndShapeInfo(info_); }

  Shape shape() const {
    Shape shape;
    Check(Ort().GetDimensionsCount(info_, &shape.rank));
    if (shape.rank > kMaxRank) {
      throw Error("a tensor of rank " + std::to_string(shape.rank) + ", the limit is " + std::to_string(kMaxRank));
    }
    Check(Ort().GetDimensions(info_, shape.dims, shape.rank));
    return shape;
  }

 private:
  OrtTensorTypeAndShapeInfo* info_ = nullptr;
};

// The data of a tensor. C API has one function for inputs and outputs; inputs are only read.
void* Data(const OrtValue* value) {
  void* data = nullptr;
  Check(Ort().GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  return data;
}

void* Allocate(OrtKernelContext* context, std::size_t k, const Shape& shape) {
  OrtValue* value = nullptr;
  Check(Ort().KernelContext_GetOutput(context, k, shape.dims, shape.rank, &value));
  return value == nullptr ? nullptr : Data(value);
}

// Some element that may be read in place of an empty input that does not matter: allocations are larger than 8 bytes.
const void* Readable(const Domain& domain, std::size_t outputs) {
  void* const* end = domain.output + outputs;
  const void* written = *std::find_if(domain.output, end, [](const void* p) { return p != nullptr; });
  return static_cast<const char*>(written) - reinterpret_cast<std::uintptr_t>(written) % 8;
}

}  // namespace

Shape OutputShape(const Program& program, std::size_t k, const Shape* inputs) {
  Shape shape{};
  for (const std::uint32_t d : program.depends[k]) {
    if (BroadcastInto(inputs[d], &shape)) continue;
    std::string text = "shapes do not broadcast for output " + std::to_string(k) + ":";
    for (const std::uint32_t other : program.depends[k]) text += " " + ToString(inputs[other]);
    throw Error(text);
  }
  PadRank(program.ranks[k], &shape);
  return shape;
}

void PointwiseKernel::Compute(OrtKernelContext* context) const {
  const Program& program = kernel().program;
  const std::size_t inputs = program.inputs.size();
  const std::size_t outputs = program.outputs.size();
  Shape shapes[kMaxInputs];
  const void* inputs_data[kMaxInputs];
  for (std::size_t k = 0; k < inputs; ++k) {
    const OrtValue* value = nullptr;
    Check(Ort().KernelContext_GetInput(context, k, &value));
    if (value == nullptr) throw Error("input " + std::to_string(k) + " is missing");
    shapes[k] = TensorInfo(value).shape();
    inputs_data[k] = Data(value);
  }
  if (program.index) return ComputeIndexed(context, shapes, inputs_data);
  Domain domain;
  Shape out_shapes[kMaxOutputs];
  void* data[kMaxOutputs];
  for (std::size_t k = 0; k < outputs; ++k) {
    out_shapes[k] = OutputShape(program, k, shapes);
    data[k] = Allocate(context, k, out_shapes[k]);
  }
  for (std::size_t k = 0; k < outputs; ++k) {
    const auto same = [&](std::size_t other) { return out_shapes[other] == out_shapes[k]; };
    bool done = false;
    for (std::size_t earlier = 0; earlier < k && !done; ++earlier) done = same(earlier);
    domain.count = out_shapes[k].count();
    if (done || domain.count == 0) continue;
    for (std::size_t other = 0; other < outputs; ++other) domain.output[other] = same(other) ? data[other] : nullptr;
    if (std::all_of(domain.output, domain.output + outputs, [](void* p) { return p == nullptr; })) continue;
    for (std::size_t i = 0; i < inputs; ++i) {
      domain.input[i] = inputs_data[i];
      if (Collapse(shapes[i], out_shapes[k], &domain.access[i])) continue;
      domain.access[i].runs = 0;
      if (shapes[i].count() == 0) domain.input[i] = Readable(domain, outputs);
    }
    Run(domain, context);
  }
}

// All outputs have the size of the one domain.
void PointwiseKernel::ComputeIndexed(OrtKernelContext* context, const Shape* shapes, const void* const* data) const {
  const Program& program = kernel().program;
  const Sizes sizes(*program.index, shapes, program.inputs.size());
  Domain domain;
  domain.count = 0;
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    const Shape shape = sizes.OutputShape(k);
    domain.output[k] = Allocate(context, k, shape);
    domain.count = shape.count();
  }
  if (domain.count == 0) return;
  for (std::size_t k = 0; k < program.accesses(); ++k) {
    std::int64_t offset = 0;
    domain.access[k] = sizes.Resolve(k, &offset);
    const auto bytes = offset * static_cast<std::int64_t>(Size(program.leaf(k)));
    domain.input[k] = static_cast<const char*>(data[program.index->accesses[k].input]) + bytes;
  }
  for (std::size_t k = 0; k < program.conditions(); ++k) domain.condition[k] = sizes.ResolveCondition(k);
  Run(domain, context);
}

}  // namespace onnxopt
