#include "call/bind.h"

#include <algorithm>

#include "call/tensors.h"
#include "program/window.h"

namespace onnxopt {

Binding::Binding(const char* kind, std::size_t inputs, OrtKernelContext* context) : kind_(kind) {
  for (std::size_t k = 0; k < inputs; ++k) data_[k] = InputTensor(context, k, &shapes_[k]);
}

void Binding::Dims(const char* operand, std::size_t input, const char* declared,
                   std::initializer_list<std::int64_t> dims) {
  const Shape& shape = shapes_[input];
  const bool may_be_image = std::find(dims.begin(), dims.end(), kD) != dims.end();
  const bool is_image = may_be_image && shape.rank + 1 == dims.size();
  bool fits = is_image || shape.rank == dims.size();
  std::size_t d = 0;
  for (auto at = dims.begin(); fits && at != dims.end(); ++at) {
    if (is_image && *at == kD) continue;
    const bool is_symbol = *at < 0;
    if (is_symbol && symbols_[-1 - *at] < 0) symbols_[-1 - *at] = shape.dims[d];
    fits = shape.dims[d++] == (is_symbol ? symbols_[-1 - *at] : *at);
  }
  if (!fits) {
    std::string expected;
    std::string named = declared;
    if (may_be_image) named.replace(named.find("D?, "), 4, shape.rank < dims.size() ? "" : "D, ");
    for (const std::int64_t dim : dims) {
      const std::int64_t number = dim < 0 ? symbols_[-1 - dim] : dim;
      if (dim == kD && shape.rank < dims.size()) continue;
      expected +=
          (expected.empty() ? "" : ", ") + (number < 0 ? std::string(1, "NHWCD"[-1 - dim]) : std::to_string(number));
    }
    Fail(operand, shape, "is not [" + named + "], here [" + expected + "]");
  }
  if (*std::max_element(shape.dims, shape.dims + shape.rank) > kMaxExtent) {
    Fail(operand, shape, "has a dim of 2^31 or more");
  }
}

void Binding::Elements(const char* operand, std::size_t input, const char* declared, std::int64_t count) const {
  if (shapes_[input].count() == static_cast<std::uint64_t>(count)) return;
  Fail(operand, shapes_[input], "has not as many elements as " + std::string(declared) + ", " + std::to_string(count));
}

void Binding::Reads(const Transform& transform, const Shape& result, std::int64_t samples, std::int64_t channels,
                    std::int64_t groups) const {
  const auto fits = [&](const TransformRead& read, const Shape& shape) {
    const auto has = [&](std::int64_t count) { return shape.count() == static_cast<std::uint64_t>(count); };
    switch (read.form) {
      case TransformForm::kElement:
        return shape == result;
      case TransformForm::kChannel:
        return has(channels);
      case TransformForm::kSample:
        if (read.row) return shape.rank == 2 && shape.dims[0] == samples && shape.dims[1] == *read.row;
        return has(samples * channels);
      case TransformForm::kGroup:
        return has(groups);
      case TransformForm::kScalar:
        return has(1);
      case TransformForm::kHalf:
        return true;  // x, of which the kernel has computed it
    }
    return false;
  };
  static constexpr const char* kForms[] = {"element", "channel", "sample", "group", "scalar", "half"};
  for (const TransformRead& read : transform.reads) {
    const Shape& shape = shapes_[read.input];
    if (fits(read, shape)) continue;
    const std::string form = kForms[static_cast<std::size_t>(read.form)];
    Fail("input " + std::to_string(read.input), shape, "is not read by " + form + " beside " + ToString(result));
  }
}

void Binding::Fail(const std::string& operand, const Shape& shape, const std::string& problem) const {
  throw Error(std::string(kind_) + ": " + operand + " " + ToString(shape) + " " + problem);
}

}  // namespace onnxopt
