#include "kernel_file/pool.h"

#include <algorithm>
#include <string>

#include "kernel_file/fields.h"
#include "kernel_file/window.h"

namespace onnxopt {
namespace {

constexpr std::int64_t kMostSide = 1023;
constexpr std::uint64_t kMostTile = 16;
constexpr unsigned kAccessBytes = 16;

PoolOperation ReadOperation(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "max") return PoolOperation::kMax;
  if (text == "average") return PoolOperation::kAverage;
  json.Fail("is \"" + text + "\", not max or average");
}

void CheckDtypes(const JsonReader& json, PoolOperation operation, const std::vector<Dtype>& inputs,
                 const std::vector<Dtype>& outputs) {
  if (inputs.size() != 1) json["inputs"].Fail("has " + std::to_string(inputs.size()) + " dtypes, not 1");
  if (outputs.size() != 1) json["outputs"].Fail("has " + std::to_string(outputs.size()) + " dtypes, not 1");
  if (inputs[0] != outputs[0]) json["outputs"].Fail("differs from the input's dtype");
  const Dtype dtype = inputs[0];
  const bool is_byte = operation == PoolOperation::kMax && (dtype == Dtype::kInt8 || dtype == Dtype::kUint8);
  if (!is_byte && !IsFloat(dtype)) {
    json["inputs"].Fail("is " + std::string(Row(dtype).name) + ", of which there is no such pool");
  }
}

// What no kernel runs: what a kernel's code takes for granted.
void CheckWindow(const JsonReader& json, const Window& window) {
  const bool same = window.auto_pad == AutoPad::kSameUpper || window.auto_pad == AutoPad::kSameLower;
  for (int axis = 0; axis < 2; ++axis) {
    if (std::max({window.kernel[axis], window.strides[axis], window.dilations[axis]}) > kMostSide) {
      json.Fail("has a kernel, stride or dilation above " + std::to_string(kMostSide));
    }
    if (std::max(window.pads[axis], window.pads[axis + 2]) >= window.kernel[axis]) {
      json["pads"].Fail("are not smaller than the kernel");
    }
    if (same && window.dilations[axis] != 1) json["dilations"].Fail("are not 1 beside auto_pad");
    if (same && window.strides[axis] > window.kernel[axis]) json["strides"].Fail("exceed the kernel beside auto_pad");
  }
}

}  // namespace

Pool ReadPool(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs) {
  Pool pool;
  pool.operation = ReadOperation(json["operation"]);
  CheckDtypes(json, pool.operation, inputs, outputs);
  pool.dtype = inputs[0];
  pool.window = ReadWindow(json["window"]);
  CheckWindow(json["window"], pool.window);
  pool.ceil_mode = json["ceil_mode"].Flag();
  pool.count_include_pad = json["count_include_pad"].Flag();
  if (pool.ceil_mode && pool.count_include_pad) json["count_include_pad"].Fail("is set beside ceil_mode");
  if (pool.operation == PoolOperation::kMax && pool.count_include_pad) {
    json["count_include_pad"].Fail("is set for a max");
  }
  return pool;
}

Variant ReadPoolVariant(const JsonReader& json, const Pool& pool) {
  Variant variant = ReadVariant(json);
  if (variant.index != 32) json["index"].Fail("is not 32");
  if (variant.vector * Size(pool.dtype) > kAccessBytes) json["vector"].Fail("is wider than one access");
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  variant.waits = json["waits"].Flag();
  const auto side = [&](const char* field) { return static_cast<unsigned>(json[field].Number(1, kMostTile)); };
  variant.shape.Set(PoolTile{side("down"), side("across")});
  return variant;
}

}  // namespace onnxopt
