#include "kernel_file/window.h"

#include <algorithm>
#include <limits>
#include <string>

namespace onnxopt {
namespace {

// Far above any real one, and small enough that products of two and sums with a dim fit 64 bits.
constexpr std::uint64_t kMost = std::numeric_limits<std::int32_t>::max();

void ReadNumbers(const JsonReader& json, std::uint64_t low, std::size_t count, std::int64_t* numbers) {
  std::size_t found = 0;
  json.Each([&](const JsonReader& number) {
    const std::uint64_t value = number.Number(low, kMost);
    if (found < count) numbers[found] = static_cast<std::int64_t>(value);
    ++found;
  });
  if (found != count) json.Fail("has " + std::to_string(found) + " numbers, not " + std::to_string(count));
}

AutoPad ReadAutoPad(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "NOTSET") return AutoPad::kNotSet;
  if (text == "VALID") return AutoPad::kValid;
  if (text == "SAME_UPPER") return AutoPad::kSameUpper;
  if (text == "SAME_LOWER") return AutoPad::kSameLower;
  json.Fail("is \"" + text + "\", not NOTSET, VALID, SAME_UPPER or SAME_LOWER");
}

}  // namespace

Window ReadWindow(const JsonReader& json) {
  Window window;
  ReadNumbers(json["kernel"], 1, 2, window.kernel);
  ReadNumbers(json["strides"], 1, 2, window.strides);
  ReadNumbers(json["dilations"], 1, 2, window.dilations);
  ReadNumbers(json["pads"], 0, 4, window.pads);
  window.auto_pad = ReadAutoPad(json["auto_pad"]);
  const bool padded = std::any_of(window.pads, window.pads + 4, [](std::int64_t pad) { return pad != 0; });
  if (padded && window.auto_pad != AutoPad::kNotSet) json["pads"].Fail("are not zeros beside auto_pad");
  return window;
}

}  // namespace onnxopt
