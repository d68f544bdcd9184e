// What the library would hand to the entry points of an attention, driven by tests/kinds/flash_attention/:
//   launches <file with the kernel's row of kernels.json> <batch> <queries> <keys> <period of the bias> <by head>
//            <resident blocks> <bytes> <shared> <by query> <major>
// prints the number of the entry point that is chosen, then for each its blocks and numbers, 0 where it does not fit.
// bytes: what all addresses are multiples of. shared: bytes of shared memory that a block can have.
// major: the compute capability of a GPU with 132 multiprocessors.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "cuda/flash_attention_variant.h"
#include "kernel_file/fields.h"
#include "kernel_file/flash_attention.h"
#include "kernel_file/generated/readers.h"

namespace onnxopt {
namespace {

HeadsPlace PlaceOf(const Heads& heads, std::int64_t tokens, std::int64_t count, std::int64_t width, const void* data) {
  if (heads.row == 0) return {data, count * tokens * width, tokens * width, width};
  return {data, tokens * heads.row, heads.step, heads.row};
}

FlashAttentionCall CallOf(const FlashAttention& attention, char** arguments) {
  FlashAttentionCall call{};
  const auto* const address = reinterpret_cast<const char*>(std::strtoull(arguments[6], nullptr, 10));
  call.batch = std::atoll(arguments[0]);
  call.queries = std::atoll(arguments[1]);
  call.keys = std::atoll(arguments[2]);
  call.q = PlaceOf(attention.q, call.queries, attention.heads, attention.width, address);
  call.k = PlaceOf(attention.k, call.keys, attention.groups, attention.width, address);
  call.v = PlaceOf(attention.v, call.keys, attention.groups, attention.values, address);
  call.bias_query = std::atoll(arguments[8]) != 0 ? call.keys : 0;
  const std::int64_t of_head = call.bias_query != 0 ? call.queries * call.keys : call.keys;
  call.bias_head = std::atoll(arguments[4]) != 0 ? of_head : 0;
  call.bias_batch = of_head * (call.bias_head != 0 ? attention.heads : 1);
  call.bias_period = std::atoll(arguments[3]);
  call.y = const_cast<char*>(address);
  return call;
}

void Print(char** arguments) {
  std::ifstream file(arguments[0]);
  const nlohmann::json document = nlohmann::json::parse(file);
  const JsonReader json(document, "");
  const FlashAttention attention = ReadFlashAttention(json, ReadDtypes(json["inputs"]), ReadDtypes(json["outputs"]));
  std::vector<Variant> variants;
  json["variants"].Each([&](const JsonReader& v) { variants.push_back(ReadFlashVariant(v, attention)); });
  const FlashAttentionCall call = CallOf(attention, arguments + 1);
  const auto resident = static_cast<unsigned>(std::atoi(arguments[6]));
  const auto shared = static_cast<unsigned>(std::atoi(arguments[8]));
  const cuda::FlashGpu gpu{std::atoi(arguments[10]) == 9, 132, shared};
  std::printf("%zu\n", cuda::ChooseFlashAttention(attention, variants, call, gpu));
  for (const Variant& variant : variants) {
    const auto made = cuda::LaunchOf(attention, variant, call, resident);
    const cuda::FlashAttentionLaunch launch = made.value_or(cuda::FlashAttentionLaunch{});
    const FlashAttentionParams& p = launch.params;
    std::printf("%u", launch.blocks);
    for (const HeadsOf& x : {p.q, p.k, p.v}) std::printf(" %llu %llu %u", x.of_batch, x.of_head, x.of_token);
    std::printf(" %llu %llu %u %u %u %u %u %u %u %u %u %d %d %d %.9g %.9g\n", p.bias_batch, p.bias_head, p.bias_query,
                p.bias_period, p.batch, p.step, p.heads, p.group, p.queries, p.keys, p.tiles, p.behind, p.before,
                p.after, static_cast<double>(p.scale), static_cast<double>(p.cap));
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
