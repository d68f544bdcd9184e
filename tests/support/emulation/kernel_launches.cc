// What the library would hand to the entry points of a kernel, driven by kernel_launches.py:
//   kernel_launches <kind> <file> <bytes> <constants> <major> <multiprocessors> <shared> <resident> <tf32> <sizes>...
// file: the kernel's row of kernels.json. bytes: what addresses are multiples of, and of no more, but for those of the
// constants (a bit an input), which are multiples of 256. The GPU: its compute capability's major number,
// multiprocessors, bytes of shared memory that a block can have, blocks that run at once, and whether float32 products
// may round their operands. sizes: of the call; of cores, N, H, W and, where the meaning does not have it, C;
// of pools of volumes then D.
// library_programs.py defines CORES, a row CORE for each kind of cores.
// Prints the number of the entry point that is chosen, then for each its blocks, 0 where it does not fit, its bytes of
// scratch and, in hexadecimal, the bytes of its parameters, whose addresses are those that AddressOf gives.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>

#include "cuda/flash_attention.h"
#include "kernel_file/fields.h"
#include "kernel_file/generated/readers.h"
#include "kernel_file/kind_reader.h"
#include "kernel_file/variants.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kTag = 0x5A5A00, kTensorBits = 40;  // as kernel_launches.h has them
constexpr std::uint64_t kAligned = 256;
constexpr std::size_t kResult = 16, kScratch = 17;  // numbers of tensors; inputs have those of the meaning

struct Arguments {
  std::uint64_t bytes, constants;
  cuda::CoreGpu gpu;
  char** sizes;
  std::int64_t Size(int k) const { return std::atoll(sizes[k]); }
  char* AddressOf(std::size_t tensor) const {
    const bool is_constant = (constants >> tensor & 1) != 0;
    return reinterpret_cast<char*>(((kTag + tensor) << kTensorBits) + (is_constant ? kAligned : bytes));
  }
};

template <typename Meaning>
std::vector<Variant> Variants(const JsonReader& json, const Meaning& meaning,
                              Variant (*read)(const JsonReader&, const Meaning&)) {
  std::vector<Variant> variants;
  json["variants"].Each([&](const JsonReader& v) { variants.push_back(read(v, meaning)); });
  return variants;
}

// The entry point that a kind chooses, and the first launch of each.
template <typename Kind>
void Print(const typename Kind::Meaning& meaning, const std::vector<Variant>& variants, const typename Kind::Call& call,
           const Arguments& given) {
  cuda::CoreGpu alone = given.gpu;
  alone.resident = 1;
  std::printf("%zu\n", Kind::Choose(meaning, variants, call, alone));
  for (const Variant& variant : variants) {
    auto launch = Kind::LaunchOf(meaning, variant, call, given.gpu, 0).value_or(typename Kind::Launch{});
    Kind::SetScratch(given.AddressOf(kScratch), &launch.params);
    std::printf("%u %zu ", launch.blocks, launch.scratch);
    unsigned char bytes[sizeof(launch.params)];
    std::memcpy(bytes, &launch.params, sizeof(bytes));
    for (const unsigned char byte : bytes) std::printf("%02x", byte);
    std::printf("\n");
  }
}

template <typename Meaning>
auto Slide(const Meaning& meaning, CoreCall* call, int) -> decltype(meaning.window, void()) {
  SlideOver(meaning, call);
}

template <typename Meaning>
void Slide(const Meaning& /*without a window*/, CoreCall* call, ...) {
  call->out_height = call->height;
  call->out_width = call->width;
}

// Sizes: those of x, and what `channels` reads.
template <typename Kind, typename ReadMeaning, typename ReadVariant, typename Channels>
void OfCore(const JsonReader& json, const Arguments& given, ReadMeaning read, ReadVariant read_variant,
            Channels channels) {
  const typename Kind::Meaning meaning = read(json, ReadDtypes(json["inputs"]), ReadDtypes(json["outputs"]));
  std::vector<Variant> variants = Variants(json, meaning, read_variant);
  CheckEntryPoints(json["variants"], true, meaning, &variants);
  CoreCall call{};
  for (std::size_t k = 0; k < std::size(call.input); ++k) call.input[k] = given.AddressOf(k);
  call.y = given.AddressOf(kResult);
  call.batch = given.Size(0);
  call.depth = call.out_depth = 1;
  call.height = given.Size(1);
  call.width = given.Size(2);
  call.channels = channels(meaning);
  call.result = ShapeOf({call.batch, call.height, call.width, call.channels});
  if constexpr (std::is_same_v<typename Kind::Meaning, Pool>) {
    if (meaning.window.depth) {
      call.depth = given.Size(4);
      call.result = ShapeOf({call.batch, call.depth, call.height, call.width, call.channels});
    }
  }
  Slide(meaning, &call, 0);
  Print<Kind>(meaning, variants, call, given);
}

HeadsPlace PlaceOf(const FlashAttention& attention, const Heads& heads, std::int64_t tokens, std::int64_t count,
                   std::int64_t width, const Arguments& given) {
  const void* data = given.AddressOf(heads.input) + static_cast<std::size_t>(heads.first) * Size(attention.dtype());
  if (heads.row == 0) return {data, count * tokens * width, tokens * width, width};
  return {data, tokens * heads.row, heads.step, heads.row};
}

// Sizes: batch, queries, keys, period of the bias, whether it has a part a head, whether it has one a query.
void OfFlashAttention(const JsonReader& json, const Arguments& given) {
  const FlashAttention attention = ReadFlashAttention(json, ReadDtypes(json["inputs"]), ReadDtypes(json["outputs"]));
  std::vector<Variant> variants = Variants(json, attention, ReadFlashAttentionVariant);
  CheckEntryPoints(json["variants"], true, attention, &variants);
  FlashAttentionCall call{};
  call.batch = given.Size(0);
  call.queries = given.Size(1);
  call.keys = given.Size(2);
  call.q = PlaceOf(attention, attention.q, call.queries, attention.heads, attention.width, given);
  call.k = PlaceOf(attention, attention.k, call.keys, attention.groups, attention.width, given);
  call.v = PlaceOf(attention, attention.v, call.keys, attention.groups, attention.values, given);
  if (attention.bias) call.bias = given.AddressOf(*attention.bias);
  if (attention.sinks) call.sinks = given.AddressOf(*attention.sinks);
  call.bias_query = given.Size(5) != 0 ? call.keys : 0;
  const std::int64_t of_head = call.bias_query != 0 ? call.queries * call.keys : call.keys;
  call.bias_head = given.Size(4) != 0 ? of_head : 0;
  call.bias_batch = of_head * (call.bias_head != 0 ? attention.heads : 1);
  call.bias_period = given.Size(3);
  call.y = given.AddressOf(kResult);
  Print<cuda::FlashAttentionCore>(attention, variants, call, given);
}

void PrintLaunches(char** arguments) {
  std::ifstream file(arguments[1]);
  const nlohmann::json document = nlohmann::json::parse(file);
  const auto number = [&](int k) { return static_cast<unsigned>(std::atoi(arguments[k])); };
  const int major = std::atoi(arguments[4]);
  const cuda::CoreGpu gpu{major, number(5), number(6), number(7), number(8) != 0, major == 9};
  const Arguments given{number(2), number(3), gpu, arguments + 9};
  static const std::map<std::string, void (*)(const JsonReader&, const Arguments&)> kKinds = {
#define CORE(kind, Name, channels)                                                      \
  {#kind, [](const JsonReader& json, const Arguments& given) {                          \
     OfCore<cuda::Name##Core>(json, given, Read##Name, Read##Name##Variant,             \
                              [&](const Name& r) -> std::int64_t { return channels; }); \
   }},
      CORES{"flash_attention", OfFlashAttention},
  };
  kKinds.at(arguments[0])(JsonReader(document, ""), given);
}

}  // namespace
}  // namespace onnxopt

int main(int, char** arguments) {
  try {
    onnxopt::PrintLaunches(arguments + 1);
  } catch (const std::exception& e) {
    std::printf("error: %s\n", e.what());
    return 1;
  }
  return 0;
}
