#include "cuda/experts.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>

#include "experts/abi.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMostInts = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMostFewRows = 256;  // that every block looks through (cuda_kernels/experts/rows.cuh)
constexpr std::uint64_t kAccessBytes = 16;
constexpr std::uint64_t kIntsOfTile = 3;
constexpr std::uint64_t kJoined = 4;        // elements of a token that a thread adds up
constexpr std::uint64_t kBlocksOfAll = 8;   // blocks a multiprocessor that a product is cut into where it has fewer
constexpr std::uint64_t kLeastDepth = 512;  // of such a block

std::uint64_t CeilDiv(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// Bytes of a part of the scratch memory.
std::uint64_t Part(std::uint64_t bytes) { return CeilDiv(bytes, kAccessBytes) * kAccessBytes; }

void CheckAlignment(const ExpertsCall& call) {
  std::uintptr_t all = 0;
  for (const void* data : {call.x, call.weight[0], call.weight[1], static_cast<const void*>(call.y)}) {
    all |= reinterpret_cast<std::uintptr_t>(data);
  }
  if (all % kAccessBytes != 0) {
    throw Error("a tensor of a mixture of experts is not aligned to " + std::to_string(kAccessBytes) + " bytes");
  }
}

}  // namespace

// The smallest tile that takes all rows that an expert can have of few tokens, or that it has on average of many.
const ExpertsForm& ExpertsCudaKernel::FormOf(std::uint64_t tokens) const {
  const std::uint64_t rows = tokens * static_cast<std::uint64_t>(meaning_.chosen);
  for (const ExpertsForm& form : kExpertsForms) {
    const std::uint64_t tile = kernel().variants[form.first].shape.As<ExpertsTileShape>().rows;
    const bool found_by_blocks = form.route == ExpertsForm::kNone;
    const bool fits = found_by_blocks ? tokens <= tile && rows <= kMostFewRows
                                      : rows <= tile * static_cast<std::uint64_t>(meaning_.experts);
    if (fits) return form;
  }
  return *(std::end(kExpertsForms) - 1);
}

ExpertsCudaKernel::Cut ExpertsCudaKernel::CutOf(std::size_t variant, bool second, std::uint64_t tiles) const {
  const std::uint64_t columns = kernel().variants[variant].shape.As<ExpertsTileShape>().columns;
  const bool halves = !second && meaning_.gated();
  const auto width = static_cast<std::uint64_t>(second ? meaning_.columns : meaning_.hidden);
  const auto depth = static_cast<std::uint64_t>(second ? meaning_.hidden : meaning_.columns);
  Cut cut{CeilDiv(width, halves ? columns / 2 : columns), 1};
  const std::uint64_t wanted = kBlocksOfAll * launcher_.device().multiprocessors / (tiles * cut.columns);
  cut.splits = std::clamp<std::uint64_t>(wanted, 1, std::max<std::uint64_t>(depth / kLeastDepth, 1));
  return cut;
}

void ExpertsCudaKernel::Launch(std::size_t variant, std::uint64_t blocks, void* params, Stream stream) const {
  if (blocks > kMostInts) throw Error("a mixture of experts of more blocks than a launch can have");
  if (kernel().variants[variant].shared > 0) launcher_.Resident(variant);  // gives it its shared memory
  launcher_.Launch(variant, static_cast<unsigned>(blocks), static_cast<unsigned char*>(params), stream);
}

void ExpertsCudaKernel::Compute(OrtKernelContext* context) const {
  const ExpertsCall call = OpenCall(meaning_, context);
  if (call.y == nullptr) return;
  CheckAlignment(call);
  const Stream stream = launcher_.Enter(context);
  const auto chosen = static_cast<std::uint64_t>(meaning_.chosen);
  const auto experts = static_cast<std::uint64_t>(meaning_.experts);
  const std::uint64_t rows = static_cast<std::uint64_t>(call.tokens) * chosen;
  if (rows > kMostInts) throw Error("a mixture of experts of " + std::to_string(rows) + " choices, above 2^31 - 1");
  const ExpertsForm& form = FormOf(static_cast<std::uint64_t>(call.tokens));
  const bool routed = form.route != ExpertsForm::kNone;
  const std::uint64_t tile_rows = kernel().variants[form.first].shape.As<ExpertsTileShape>().rows;
  const std::uint64_t tiles = std::min(rows, experts) + (routed ? rows / tile_rows : 0);
  const Cut first = CutOf(form.first, false, tiles);
  const Cut second = CutOf(form.first + 1, true, tiles);
  const auto hidden = static_cast<std::uint64_t>(meaning_.hidden);
  const auto columns = static_cast<std::uint64_t>(meaning_.columns);
  const std::uint64_t of_first = first.splits > 1 ? first.splits * static_cast<std::uint64_t>(meaning_.wide()) : 0;
  const std::uint64_t between = Part(rows * hidden * Size(meaning_.dtype));
  const std::uint64_t sums = Part(rows * std::max(of_first, second.splits * columns) * sizeof(float));
  const std::uint64_t ints = routed ? Part((rows + tiles * kIntsOfTile + 1) * sizeof(int)) : 0;
  CallScratch scratch(allocator_, context);
  char* const memory = static_cast<char*>(scratch.Of(between + sums + ints));
  ExpertsParams params{};
  params.x = call.x;
  params.ids = reinterpret_cast<const long long*>(call.ids);
  params.factors = call.factors;
  std::copy_n(call.weight, 2, params.weight);
  params.between = memory;
  params.sums = reinterpret_cast<float*>(memory + between);
  params.y = call.y;
  params.splits[0] = static_cast<int>(first.splits);
  params.splits[1] = static_cast<int>(second.splits);
  params.rows = static_cast<int>(rows);
  params.most_tiles = static_cast<int>(tiles);
  if (routed) {
    params.order = reinterpret_cast<int*>(memory + between + sums);
    params.tiles = params.order + rows;
    params.tile_count = params.tiles + tiles * kIntsOfTile;
    Launch(form.route, 1, &params, stream);
  }
  const auto for_each = [&](std::size_t variant, std::uint64_t elements) {
    Launch(variant, CeilDiv(elements, kernel().variants[variant].threads), &params, stream);
  };
  Launch(form.first, tiles * first.columns * first.splits, &params, stream);
  if (first.splits > 1) for_each(kExpertsActivate, rows * hidden);
  Launch(form.first + 1, tiles * second.columns * second.splits, &params, stream);
  for_each(kExpertsJoin, static_cast<std::uint64_t>(call.tokens) * columns / kJoined);
}

}  // namespace onnxopt::cuda
