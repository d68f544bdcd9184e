// What the library would hand to the entry points of a group norm, driven by tests/kinds/group_norm/:
//   launches <file with the kernel's row of kernels.json> <samples> <pixels> <major> <multiprocessors> <bytes>
// prints the number of the entry point that is chosen, then for each its blocks, bytes of scratch, slabs, parts and
// pixels of a part, 0 where it does not fit. bytes: what all addresses are multiples of.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "cuda/group_norm_variant.h"
#include "kernel_file/fields.h"
#include "kernel_file/generated/readers.h"
#include "kernel_file/group_norm.h"

namespace onnxopt {
namespace {

void Print(char** arguments) {
  std::ifstream file(arguments[0]);
  const nlohmann::json document = nlohmann::json::parse(file);
  const JsonReader json(document, "");
  const GroupNorm norm = ReadGroupNorm(json, ReadDtypes(json["inputs"]), ReadDtypes(json["outputs"]));
  std::vector<Variant> variants;
  json["variants"].Each([&](const JsonReader& v) { variants.push_back(ReadGroupNormVariant(v, norm)); });
  CheckLaunches(variants, json["variants"]);
  GroupNormCall call{};
  const auto* const address = reinterpret_cast<const char*>(std::strtoull(arguments[5], nullptr, 10));
  for (const void*& input : call.input) input = address;
  call.y = const_cast<char*>(address);
  call.samples = std::atoll(arguments[1]);
  call.pixels = std::atoll(arguments[2]);
  const cuda::GroupNormGpu gpu{std::atoi(arguments[3]), static_cast<unsigned>(std::atoi(arguments[4]))};
  std::printf("%zu\n", cuda::ChooseGroupNorm(norm, variants, call, gpu));
  for (const Variant& variant : variants) {
    const auto launch = cuda::LaunchOf(norm, variant, call, gpu).value_or(cuda::GroupNormLaunch{});
    const GroupNormParams& p = launch.params;
    std::printf("%u %zu %d %d %d\n", launch.blocks, launch.scratch, p.slabs, p.parts, p.part_pixels);
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
