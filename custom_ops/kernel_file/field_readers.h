// What the generated readers of meanings and entry points are made of: fields with their limits. Every function throws
// Error naming the place of what breaks a rule.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/dtype.h"
#include "program/programs/pointwise.h"
#include "program/transform.h"
#include "support/json_reader.h"

namespace onnxopt {

// low to high, without low itself where `above`, and without a fraction where `whole`.
struct NumberRange {
  double low;
  double high;
  bool above;
  bool whole;
};

// Between low and high, and a multiple of `multiple`.
std::int64_t ReadInteger(const JsonReader& json, std::int64_t low, std::int64_t high, std::int64_t multiple);

// `count` integers between low and high.
void ReadIntegers(const JsonReader& json, std::int64_t low, std::int64_t high, std::size_t count,
                  std::int64_t* integers);

std::vector<std::int64_t> ReadIntegerList(const JsonReader& json, std::int64_t low, std::int64_t high,
                                          std::size_t max_count);

float ReadNumber(const JsonReader& json, const NumberRange& range);

// A position among the inputs.
std::size_t ReadPosition(const JsonReader& json, const std::vector<Dtype>& inputs);

std::vector<std::size_t> ReadPositions(const JsonReader& json, const std::vector<Dtype>& inputs);

// A program of low to high float32 operands that stores one `result`, without index operations.
Program ReadCode(const JsonReader& json, std::size_t low, std::size_t high, Dtype result);

// A program that computes `result` from `first`, which passes through, and from what it reads by one of the forms.
// channels: that slices of rows have.
Transform ReadTransform(const JsonReader& json, const std::vector<Dtype>& inputs, Dtype first, Dtype result,
                        std::initializer_list<TransformForm> forms, std::int64_t channels);

// low to high dtypes, all of them among `allowed`, which is empty for any.
void CheckDtypes(const JsonReader& json, const std::vector<Dtype>& dtypes, std::size_t low, std::size_t high,
                 std::initializer_list<Dtype> allowed);

void CheckDtype(const JsonReader& json, Dtype dtype, std::initializer_list<Dtype> allowed);

// other: the name of what has the dtype `expected`.
void CheckSameDtype(const JsonReader& json, Dtype dtype, Dtype expected, const char* other);

template <typename T>
T ReadChoice(const JsonReader& json, std::initializer_list<std::pair<const char*, T>> names) {
  const std::string text = json.Text();
  std::string all;
  for (const auto& [name, value] : names) {
    if (text == name) return value;
    all += (all.empty() ? "" : ", ") + std::string(name);
  }
  json.Fail("is \"" + text + "\", not one of " + all);
}

template <typename Body>
auto ReadList(const JsonReader& json, std::size_t low, std::size_t high, const Body& body) {
  std::vector<decltype(body(json))> values;
  json.Each([&](const JsonReader& one) {
    if (values.size() == high) json.Fail("are more than " + std::to_string(high));
    values.push_back(body(one));
  });
  if (values.size() < low) json.Fail("are fewer than " + std::to_string(low));
  return values;
}

// Which inputs of a kernel something reads.
class InputsRead {
 public:
  explicit InputsRead(std::size_t inputs) : read_(inputs, false) {}

  void Add(std::size_t input) {
    if (input < read_.size()) read_[input] = true;
  }
  void Add(const std::optional<std::size_t>& input) {
    if (input) read_[*input] = true;
  }
  void Add(const Transform& transform) {
    for (const TransformRead& read : transform.reads) Add(read.input);
  }
  void Add(const std::optional<Transform>& transform) {
    if (transform) Add(*transform);
  }
  // Inputs that the kernel says it does not read.
  void AddUnread(const JsonReader& json, const std::vector<std::size_t>& inputs);

  // Throws where nothing reads an input.
  void Check(const JsonReader& json) const;

 private:
  std::vector<bool> read_;
};

}  // namespace onnxopt
