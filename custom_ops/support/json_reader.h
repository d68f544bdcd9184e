// Typed access to JSON whose errors name the place, as `kernels[3].code[2].dtype`.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "support/error.h"
#include "support/printable.h"

namespace onnxopt {

// A JSON value and the path to it. Every member throws Error naming that path.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& value, std::string path) : value_(value), path_(std::move(path)) {}

  [[noreturn]] void Fail(const std::string& problem) const { throw Error(Printable(path_ + " " + problem)); }

  bool Has(const char* key) const { return value_.is_object() && value_.contains(key); }

  JsonReader operator[](const char* key) const {
    if (!value_.is_object()) Fail("is not an object");
    const auto match = value_.find(key);
    if (match == value_.end()) Fail("has no field \"" + std::string(key) + "\"");
    return {*match, path_.empty() ? key : path_ + "." + key};
  }

  template <typename Body>
  void Each(Body&& body) const {
    if (!value_.is_array()) Fail("is not an array");
    for (std::size_t k = 0; k < value_.size(); ++k) body(JsonReader(value_[k], path_ + "[" + std::to_string(k) + "]"));
  }

  std::string Text() const {
    if (!value_.is_string() || value_.get_ref<const std::string&>().empty()) Fail("is not a text");
    return value_.get<std::string>();
  }

  bool Flag() const {
    if (!value_.is_boolean()) Fail("is not true or false");
    return value_.get<bool>();
  }

  // An integer from `low` to `high`.
  std::uint64_t Number(std::uint64_t low, std::uint64_t high) const {
    if (!value_.is_number_unsigned() || value_.get<std::uint64_t>() < low || value_.get<std::uint64_t>() > high) {
      Fail("is not an integer from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return value_.get<std::uint64_t>();
  }

  const nlohmann::json& value() const { return value_; }
  const std::string& path() const { return path_; }

 private:
  const nlohmann::json& value_;
  std::string path_;
};

}  // namespace onnxopt
