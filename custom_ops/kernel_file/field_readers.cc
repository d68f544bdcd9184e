#include "kernel_file/field_readers.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kernel_file/generated/readers.h"
#include "kernel_file/programs/pointwise.h"

namespace onnxopt {
namespace {

std::string ToText(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

std::string Count(std::size_t low, std::size_t high) {
  return low == high ? std::to_string(low) : std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace

std::int64_t ReadInteger(const JsonReader& json, std::int64_t low, std::int64_t high, std::int64_t multiple) {
  const auto value =
      static_cast<std::int64_t>(json.Number(static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high)));
  if (value % multiple != 0) json.Fail("is no multiple of " + std::to_string(multiple));
  return value;
}

void ReadIntegers(const JsonReader& json, std::int64_t low, std::int64_t high, std::size_t count,
                  std::int64_t* integers) {
  const std::vector<std::int64_t> values = ReadIntegerList(json, low, high, count);
  if (values.size() != count) {
    json.Fail("has " + std::to_string(values.size()) + " numbers, not " + std::to_string(count));
  }
  std::copy(values.begin(), values.end(), integers);
}

std::vector<std::int64_t> ReadIntegerList(const JsonReader& json, std::int64_t low, std::int64_t high,
                                          std::size_t max_count) {
  std::vector<std::int64_t> values;
  json.Each([&](const JsonReader& number) {
    if (values.size() == max_count) json.Fail("has more than " + std::to_string(max_count) + " numbers");
    values.push_back(ReadInteger(number, low, high, 1));
  });
  return values;
}

float ReadNumber(const JsonReader& json, const NumberRange& range) {
  if (!json.value().is_number()) json.Fail("is not a number");
  const double value = json.value().get<double>();
  if (!std::isfinite(value) || value < range.low || value > range.high || (range.above && value == range.low)) {
    json.Fail("is not a number " + std::string(range.above ? "above " : "from ") + ToText(range.low) + " to " +
              ToText(range.high));
  }
  if (range.whole && value != std::rint(value)) json.Fail("has a fraction");
  return static_cast<float>(value);
}

std::size_t ReadPosition(const JsonReader& json, const std::vector<Dtype>& inputs) {
  return static_cast<std::size_t>(json.Number(0, inputs.size() - 1));
}

std::vector<std::size_t> ReadPositions(const JsonReader& json, const std::vector<Dtype>& inputs) {
  std::vector<std::size_t> positions;
  json.Each([&](const JsonReader& at) { positions.push_back(ReadPosition(at, inputs)); });
  return positions;
}

Program ReadCode(const JsonReader& json, std::size_t low, std::size_t high, Dtype result) {
  Program program = ReadProgram(json);
  if (program.index) json.Fail("has index operations");
  const std::size_t count = program.inputs.size();
  const std::vector<Dtype> operands(count, Dtype::kFloat32);
  if (count < low || count > high || program.inputs != operands || program.outputs != std::vector<Dtype>{result}) {
    json.Fail("does not compute one result of its dtype from " + Count(low, high) + " float32");
  }
  return program;
}

Transform ReadTransform(const JsonReader& json, const std::vector<Dtype>& inputs, Dtype first, Dtype result,
                        std::initializer_list<TransformForm> forms, std::int64_t channels) {
  Transform transform;
  transform.program = ReadProgram(json["program"]);
  std::vector<Dtype> operands = {first};
  json["reads"].Each([&](const JsonReader& place) {
    const TransformRead read = ReadTransformRead(place, inputs, {});
    if (std::find(forms.begin(), forms.end(), read.form) == forms.end()) {
      place["form"].Fail("is none by which this program reads, such as another tensor by element");
    }
    if (read.row && read.first + channels > *read.row) place["first"].Fail("leaves less than all channels");
    if (Row(inputs[read.input]).kind != DtypeKind::kFloat) place["input"].Fail("is no float");
    operands.push_back(read.form == TransformForm::kHalf ? first : inputs[read.input]);
    transform.reads.push_back(read);
  });
  if (transform.program.index) json["program"].Fail("has index operations");
  if (transform.program.inputs != operands || transform.program.outputs != std::vector<Dtype>{result}) {
    json["program"].Fail("does not compute one result of its dtype from what passes through and the reads");
  }
  return transform;
}

void CheckDtypes(const JsonReader& json, const std::vector<Dtype>& dtypes, std::size_t low, std::size_t high,
                 std::initializer_list<Dtype> allowed) {
  if (dtypes.size() < low || dtypes.size() > high) {
    json.Fail("are " + std::to_string(dtypes.size()) + ", not " + Count(low, high));
  }
  if (allowed.size() == 0) return;
  for (const Dtype dtype : dtypes) CheckDtype(json, dtype, allowed);
}

void CheckDtype(const JsonReader& json, Dtype dtype, std::initializer_list<Dtype> allowed) {
  if (std::find(allowed.begin(), allowed.end(), dtype) != allowed.end()) return;
  std::string names;
  for (const Dtype one : allowed) names += (names.empty() ? "" : ", ") + std::string(Row(one).name);
  json.Fail("is of " + std::string(Row(dtype).name) + ", not of " + names);
}

void CheckSameDtype(const JsonReader& json, Dtype dtype, Dtype expected, const char* other) {
  if (dtype != expected) json.Fail("has another dtype than " + std::string(other));
}

void InputsRead::AddUnread(const JsonReader& json, const std::vector<std::size_t>& inputs) {
  for (const std::size_t input : inputs) {
    if (read_[input]) json.Fail("has an input that the kernel reads");
  }
  for (const std::size_t input : inputs) Add(input);
}

void InputsRead::Check(const JsonReader& json) const {
  const auto unread = std::find(read_.begin(), read_.end(), false);
  if (unread != read_.end()) {
    json.Fail("have an input " + std::to_string(unread - read_.begin()) + " that nothing reads");
  }
}

}  // namespace onnxopt
