// What the library would hand to the entry points of a convolution of images, driven by tests/kinds/image_convolution/:
//   launches <file with the kernel's row of kernels.json> <batch> <height> <width> <resident blocks> <bytes> <shared>
// prints the number of the entry point that is chosen, then for each its blocks and numbers, 0 where it does not fit.
// bytes: what all addresses are multiples of. shared: bytes of shared memory that a block can have.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "cuda/image_convolution_variant.h"
#include "kernel_file/fields.h"
#include "kernel_file/generated/readers.h"
#include "kernel_file/image_convolution.h"

namespace onnxopt {
namespace {

ImageConvolutionCall CallOf(const ImageConvolution& convolution, char** arguments) {
  ImageConvolutionCall call{};
  const auto* const address = reinterpret_cast<const char*>(std::strtoull(arguments[4], nullptr, 10));
  for (const void*& input : call.input) input = address;
  call.y = const_cast<char*>(address);
  call.batch = std::atoll(arguments[0]);
  call.height = std::atoll(arguments[1]);
  call.width = std::atoll(arguments[2]);
  const Slide down = SlideAlong(convolution.window, 0, call.height);
  const Slide across = SlideAlong(convolution.window, 1, call.width);
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
  const ImageConvolution convolution =
      ReadImageConvolution(json, ReadDtypes(json["inputs"]), ReadDtypes(json["outputs"]));
  std::vector<Variant> variants;
  json["variants"].Each([&](const JsonReader& v) { variants.push_back(ReadImageVariant(v, convolution)); });
  const ImageConvolutionCall call = CallOf(convolution, arguments + 1);
  const auto resident = static_cast<unsigned>(std::atoi(arguments[4]));
  const auto shared = static_cast<unsigned>(std::atoi(arguments[6]));
  std::printf("%zu\n", cuda::ChooseImageConvolution(convolution, variants, call, shared, std::atoi(arguments[7]) != 0));
  for (const Variant& variant : variants) {
    const auto made = cuda::LaunchOf(convolution, variant, call, resident);
    const cuda::ImageConvolutionLaunch launch = made.value_or(cuda::ImageConvolutionLaunch{});
    const ImageConvolutionParams& p = launch.params;
    std::printf("%u %d %d %d %d %d %d %u %u %u", launch.blocks, p.height, p.width, p.out_height, p.out_width, p.pad_top,
                p.pad_left, p.tiles, p.step, p.plain);
    for (const auto& d : {p.of_row, p.of_image}) std::printf(" %u %u %u", d.divisor, d.multiplier, d.shift);
    std::printf("\n");
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
