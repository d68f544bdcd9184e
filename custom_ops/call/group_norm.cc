#include "call/group_norm.h"

#include <algorithm>
#include <limits>
#include <string>

#include "call/tensors.h"
#include "program/shape.h"

namespace onnxopt {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();  // of a dim, and of pixels

bool Fits(const GroupNorm& norm, const TransformRead& read, const Shape& shape, const Shape& x) {
  const auto channels = static_cast<std::uint64_t>(norm.channels);
  switch (read.form) {
    case TransformForm::kElement:
      return shape == x;
    case TransformForm::kChannel:
      return shape.count() == channels;
    case TransformForm::kSample:
      if (read.row) return shape.rank == 2 && shape.dims[0] == x.dims[0] && shape.dims[1] == *read.row;
      return shape.count() == static_cast<std::uint64_t>(x.dims[0]) * channels;
    case TransformForm::kGroup:
      return shape.count() == static_cast<std::uint64_t>(norm.groups);
    case TransformForm::kScalar:
      return shape.count() == 1;
  }
  return false;
}

void CheckReads(const GroupNorm& norm, const Transform& part, const Shape* shapes, const Shape& x) {
  for (const TransformRead& read : part.reads) {
    if (Fits(norm, read, shapes[read.input], x)) continue;
    throw Error("group norm: input " + std::to_string(read.input) + " of shape " + ToString(shapes[read.input]) +
                " does not fit x of shape " + ToString(x));
  }
}

}  // namespace

GroupNormCall OpenCall(const GroupNorm& norm, OrtKernelContext* context) {
  Shape shapes[GroupNorm::kMaxInputs];
  GroupNormCall call{};
  for (std::size_t k = 0; k < norm.inputs.size(); ++k) call.input[k] = InputTensor(context, k, &shapes[k]);
  const Shape& x = shapes[norm.x];
  if (x.rank != 4 || x.dims[3] != norm.channels) {
    throw Error("group norm of " + std::to_string(norm.channels) + " channels: x has shape " + ToString(x));
  }
  if (*std::max_element(x.dims, x.dims + x.rank) > kMost || (x.dims[2] > 0 && x.dims[1] > kMost / x.dims[2])) {
    throw Error("group norm: x " + ToString(x) + " has 2^31 pixels or more");
  }
  CheckReads(norm, norm.epilogue, shapes, x);
  if (norm.prologue) CheckReads(norm, *norm.prologue, shapes, x);
  call.samples = x.dims[0];
  call.pixels = x.dims[1] * x.dims[2];
  call.y = OutputTensor(context, 0, x);
  if (x.count() == 0) call.y = nullptr;
  return call;
}

}  // namespace onnxopt
