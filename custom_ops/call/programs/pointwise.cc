#include "call/programs/pointwise.h"

#include <algorithm>

#include "call/tensors.h"
#include "program/programs/reach.h"

namespace onnxopt {
namespace {

// In place of a null pointer, by which a condition is told from an access. Never read.
constexpr char kNothing = 0;

// Throws Error where access k would read outside of its input.
void CheckAccess(std::size_t k, const Access& access, std::int64_t offset, const Shape& shape, const Domain& domain,
                 std::size_t input) {
  CheckNumbers(access, offset, domain.count);
  if (ReadsInside(access, offset, domain.condition, domain.count, shape.count())) return;
  throw Error("access " + std::to_string(k) + " would read outside of input " + std::to_string(input) + ", which is " +
              ToString(shape) + "; kernels.json is damaged or of another model");
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

// One launch, in which every thread loads what it needs at an index before it stores there.
bool PointwiseKernel::MayRunInPlace(const Kernel& kernel) {
  const auto& program = kernel.meaning.As<Program>();
  if (program.index) return false;
  for (std::size_t k = 1; k < program.depends.size(); ++k) {
    // Another shape means another launch.
    if (program.depends[k] != program.depends[0] || program.ranks[k] != program.ranks[0]) return false;
  }
  return true;
}

void PointwiseKernel::Compute(OrtKernelContext* context) const {
  const Program& program = program_;
  const std::size_t inputs = program.inputs.size();
  const std::size_t outputs = program.outputs.size();
  Shape shapes[kMaxInputs];
  const void* inputs_data[kMaxInputs];
  for (std::size_t k = 0; k < inputs; ++k) {
    inputs_data[k] = InputTensor(context, k, &shapes[k]);
  }
  if (program.index) return ComputeIndexed(context, shapes, inputs_data);
  Domain domain;
  Shape out_shapes[kMaxOutputs];
  void* data[kMaxOutputs];
  for (std::size_t k = 0; k < outputs; ++k) {
    out_shapes[k] = OutputShape(program, k, shapes);
    data[k] = OutputTensor(context, k, out_shapes[k]);
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
  const Program& program = program_;
  const Sizes sizes(*program.index, shapes, program.inputs.size());
  Domain domain;
  domain.count = sizes.OutputShape(0).count();
  for (std::size_t k = 1; k < program.outputs.size(); ++k) {
    if (sizes.OutputShape(k).count() == domain.count) continue;
    throw Error("outputs of " + ToString(sizes.OutputShape(0)) + " and " + ToString(sizes.OutputShape(k)) +
                " differ in size; kernels.json is damaged or of another model");
  }
  if (domain.count > 0) FillLeaves(*program.index, {program.inputs, shapes, data}, sizes, checked_, &domain);
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    domain.output[k] = OutputTensor(context, k, sizes.OutputShape(k));
  }
  if (domain.count > 0) Run(domain, context);
}

void FillLeaves(const Indexing& index, const Inputs& inputs, const Sizes& sizes, const CheckedShapes& checked,
                Domain* domain) {
  const std::size_t accesses = index.accesses.size();
  const std::uint64_t key = CheckedShapes::Key(inputs.shapes, inputs.dtypes.size());
  const bool is_checked = checked.Has(key);
  domain->indexed = true;
  domain->conditional = !index.conditions.empty();
  for (std::size_t k = 0; k < index.conditions.size(); ++k) {
    domain->condition[k] = sizes.ResolveCondition(k);
    if (!is_checked) CheckNumbers(domain->condition[k], domain->count);
    domain->input[accesses + k] = nullptr;
    domain->access[accesses + k].runs = 0;
    domain->access[accesses + k].guards = 1U << k;
  }
  for (std::size_t k = 0; k < accesses; ++k) {
    std::int64_t offset = 0;
    Access& access = domain->access[k];
    access = sizes.Resolve(k, &offset);
    const std::uint32_t input = index.accesses[k].input;
    if (!is_checked) CheckAccess(k, access, offset, inputs.shapes[input], *domain, input);
    const std::int64_t bytes = offset * static_cast<std::int64_t>(Size(inputs.dtypes[input]));
    // Where guards keep it from being read, the beginning may lie before the tensor.
    const auto address = reinterpret_cast<std::uintptr_t>(inputs.data[input]) + static_cast<std::uintptr_t>(bytes);
    domain->input[k] = address == 0 ? &kNothing : reinterpret_cast<const void*>(address);
  }
  checked.Add(key);
}

}  // namespace onnxopt
