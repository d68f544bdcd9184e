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
constexpr std::uint64_t kJoined = 4;  // elements of a token that a thread adds up
// Of a product whose depth blocks share. Measured on one H200 (benchmarks/notes.md).
constexpr std::uint64_t kMostSplits = 16;
constexpr std::uint64_t kLeastSteps = 4;         // of a block
constexpr std::uint64_t kStepsOfBlock = 6;       // that beginning and ending one takes
constexpr std::uint64_t kStepsOfActivation = 4;  // that a launch of its own takes

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

// Blocks run in waves of as many as the GPU holds. A wave takes as long as the steps of one block, and as what a block
// begins and ends with.
ExpertsCudaKernel::Cut ExpertsCudaKernel::CutOf(std::size_t variant, bool second, std::uint64_t tiles,
                                                std::uint64_t most_splits) const {
  const auto& tile = kernel().variants[variant].shape.As<ExpertsTileShape>();
  const bool halves = !second && meaning_.gated();
  const auto width = static_cast<std::uint64_t>(second ? meaning_.columns : meaning_.hidden);
  const auto depth = static_cast<std::uint64_t>(second ? meaning_.hidden : meaning_.columns);
  const std::uint64_t columns = CeilDiv(width, halves ? tile.columns / 2 : tile.columns);
  const std::uint64_t steps = CeilDiv(depth, tile.depth);
  const std::uint64_t wave = launcher_.Resident(variant);
  const auto cost = [&](std::uint64_t splits) {
    const std::uint64_t more = !second && splits > 1 ? kStepsOfActivation : 0;
    return CeilDiv(tiles * columns * splits, wave) * (CeilDiv(steps, splits) + kStepsOfBlock) + more;
  };
  Cut cut{columns, 1};
  for (std::uint64_t splits = 2; splits <= most_splits && splits * kLeastSteps <= steps; ++splits) {
    if (cost(splits) < cost(cut.splits)) cut.splits = splits;
  }
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
  const std::uint64_t usual = std::max(std::min(rows, experts), rows / tile_rows);  // tiles that exist
  const Cut first = CutOf(form.first, false, usual, routed ? 1 : kMostSplits);      // sums of many rows are too long
  const Cut second = CutOf(form.first + 1, true, usual, kMostSplits);
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
