#include "kernel_file/fields.h"

#include <limits>

namespace onnxopt {
namespace {

bool IsIdentifier(const std::string& text) {
  const auto word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (const char c : text) {
    if (!word(c)) return false;
  }
  return !text.empty() && !(text[0] >= '0' && text[0] <= '9');
}

}  // namespace

Dtype ReadDtype(const JsonReader& json) {
  Dtype dtype{};
  const std::string text = json.Text();
  if (!ParseDtype(text, &dtype)) json.Fail("is \"" + text + "\", which is no dtype");
  return dtype;
}

std::vector<Dtype> ReadDtypes(const JsonReader& list) {
  std::vector<Dtype> dtypes;
  list.Each([&](const JsonReader& dtype) { dtypes.push_back(ReadDtype(dtype)); });
  return dtypes;
}

std::string ReadIdentifier(const JsonReader& json) {
  const std::string text = json.Text();
  if (!IsIdentifier(text)) json.Fail("is \"" + text + "\", which is no identifier");
  return text;
}

std::vector<std::uint32_t> ReadIds(const JsonReader& list) {
  std::vector<std::uint32_t> values;
  list.Each([&](const JsonReader& v) {
    values.push_back(static_cast<std::uint32_t>(v.Number(0, std::numeric_limits<std::uint32_t>::max())));
  });
  return values;
}

Variant ReadVariant(const JsonReader& json) {
  Variant variant;
  variant.symbol = ReadIdentifier(json["symbol"]);
  if (!json["modes"].value().is_string()) json["modes"].Fail("is not a text");
  variant.modes = json["modes"].value().get<std::string>();
  variant.index = static_cast<unsigned>(json["index"].Number(32, 64));
  variant.vector = static_cast<unsigned>(json["vector"].Number(1, 64));
  variant.unroll = static_cast<unsigned>(json["unroll"].Number(0, 64));
  variant.threads = static_cast<unsigned>(json["threads"].Number(1, 1024));
  if (variant.unroll == 0 && !json.value().contains("layout")) json["unroll"].Fail("is 0");
  if (variant.index != 32 && variant.index != 64) json["index"].Fail("is neither 32 nor 64");
  if ((variant.vector & (variant.vector - 1)) != 0) json["vector"].Fail("is not a power of 2");
  return variant;
}

}  // namespace onnxopt
