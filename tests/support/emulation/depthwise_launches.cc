// What the library would hand to the entry points of a depthwise kernel, driven by tests/kinds/depthwise/:
//   launches <file with the kernel's row of kernels.json> <batch> <height> <width> <major> <shared bytes> <bytes>
// prints the number of the entry point that is chosen, then for each its blocks and grid, 0 where it does not fit.
// bytes: what all addresses are multiples of.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "cuda/depthwise_variant.h"
#include "kernel_file/generated/readers.h"
#include "kernel_file/depthwise.h"
#include "kernel_file/fields.h"

namespace onnxopt {
namespace {

constexpr unsigned kMultiprocessors = 4;

DepthwiseCall CallOf(const Depthwise& depthwise, char** arguments) {
  DepthwiseCall call{};
  const auto* const address = reinterpret_cast<const char*>(std::strtoull(arguments[5], nullptr, 10));
  for (const void*& input : call.input) input = address;
  call.y = const_cast<char*>(address);
  call.batch = std::atoll(arguments[0]);
  call.height = std::atoll(arguments[1]);
  call.width = std::atoll(arguments[2]);
  const Slide down = SlideAlong(depthwise.window, 0, call.height);
  const Slide across = SlideAlong(depthwise.window, 1, call.width);
  call.out_height = down.output;
  call.out_width = across.output;
  call.pad_top = down.pad_before;
  call.pad_left = across.pad_before;
  return call;
}

void Print(char** arguments) {
  std::ifstream file(arguments[0]);
  const nlohmann::json document = nlohmann::json::parse(file);
  const JsonReader json(document, "");
  const Depthwise depthwise = ReadDepthwise(json, ReadDtypes(json["inputs"]), ReadDtypes(json["outputs"]));
  std::vector<Variant> variants;
  json["variants"].Each([&](const JsonReader& v) { variants.push_back(ReadDepthwiseVariant(v, depthwise)); });
  const DepthwiseCall call = CallOf(depthwise, arguments + 1);
  const cuda::DepthwiseGpu gpu{std::atoi(arguments[4]), static_cast<unsigned>(std::atoi(arguments[5])),
                               kMultiprocessors};
  std::printf("%zu\n", cuda::ChooseDepthwise(depthwise, variants, call, gpu));
  for (const Variant& variant : variants) {
    const auto made = cuda::LaunchOf(depthwise, variant, call, gpu);
    const cuda::DepthwiseLaunch launch = made.value_or(cuda::DepthwiseLaunch{});
    const DepthwiseParams& p = launch.params;
    std::printf("%u", launch.blocks);
    for (const auto& d : {p.grid.inner, p.grid.middle, p.grid.outer}) {
      std::printf(" %u %u %u", d.divisor, d.multiplier, d.shift);
    }
    std::printf(" %d %d %d %d\n", p.out_height, p.out_width, p.pad_top, p.pad_left);
  }
}

}  // namespace
}  // namespace onnxopt

int main(int, char** arguments) {
  try {
    onnxopt::Print(arguments + 1);
  } catch (const std::exception& e) {
    std::printf("error: %s\n", e.what());
    return 1;
  }
  return 0;
}
