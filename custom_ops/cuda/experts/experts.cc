#include "cuda/experts/experts.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>

#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMaxInts = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMaxFewRows = 256;  // that every block looks through (cuda_kernels/experts/rows.cuh)
constexpr std::uint64_t kAccessBytes = 16;
constexpr std::uint64_t kPartBytes = 256;
constexpr std::uint64_t kIntsOfTile = 3;
constexpr std::uint64_t kJoined = 4;  // elements of a token that a thread adds up
using costs::experts::kMaxSplits;
using costs::experts::kMinSteps;
using costs::experts::kStepsOfActivation;
using costs::experts::kStepsOfBlock;

// Bytes of a part of the scratch memory, so that the next one is aligned as well as any.
std::uint64_t Part(std::uint64_t bytes) { return RoundUp(bytes, kPartBytes); }

void CheckAlignment(const ExpertsCall& call) {
  if (!AreAligned({call.x, call.weight[0], call.weight[1], call.y}, kAccessBytes)) {
    throw Error("a tensor of a mixture of experts is not aligned to " + std::to_string(kAccessBytes) + " bytes");
  }
}

}  // namespace

// The smallest tile that takes all rows that an expert can have of few tokens, or that it has on average of many.
const ExpertsForm& ExpertsCudaKernel::FormOf(std::uint64_t tokens) const {
  const std::uint64_t rows = tokens * static_cast<std::uint64_t>(meaning_.chosen);
  for (const ExpertsForm& form : kExpertsForms) {
    const std::uint64_t tile = TileRows(form);
    const bool found_by_blocks = form.route == ExpertsForm::kNone;
    const bool fits = found_by_blocks ? tokens <= tile && rows <= kMaxFewRows
                                      : rows <= tile * static_cast<std::uint64_t>(meaning_.experts);
    if (fits) return form;
  }
  return *(std::end(kExpertsForms) - 1);
}

std::uint64_t ExpertsCudaKernel::TileRows(const ExpertsForm& form) const {
  return kernel().variants[form.first].shape.As<ExpertsVariant>().rows;
}

// Tiles of rows that there may be: the last one of each expert may have few rows.
std::uint64_t ExpertsCudaKernel::MaxTiles(const ExpertsForm& form, std::uint64_t rows) const {
  const bool routed = form.route != ExpertsForm::kNone;
  return std::min(rows, static_cast<std::uint64_t>(meaning_.experts)) + (routed ? rows / TileRows(form) : 0);
}

// Blocks run in waves of as many as the GPU holds. A wave takes as long as the steps of one block, and as what a block
// begins and ends with.
ExpertsCudaKernel::Cut ExpertsCudaKernel::CutOf(std::size_t variant, bool second, std::uint64_t tiles,
                                                std::uint64_t max_splits) const {
  const auto& tile = kernel().variants[variant].shape.As<ExpertsVariant>();
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
  for (std::uint64_t splits = 2; splits <= max_splits && splits * kMinSteps <= steps; ++splits) {
    if (cost(splits) < cost(cut.splits)) cut.splits = splits;
  }
  return cut;
}

ExpertsCudaKernel::Work ExpertsCudaKernel::WorkOf(std::uint64_t tokens) const {
  const ExpertsForm& form = FormOf(tokens);
  const bool routed = form.route != ExpertsForm::kNone;
  const auto experts = static_cast<std::uint64_t>(meaning_.experts);
  const std::uint64_t rows = tokens * static_cast<std::uint64_t>(meaning_.chosen);
  const std::uint64_t tiles = MaxTiles(form, rows);
  const std::uint64_t usual = std::max(std::min(rows, experts), rows / TileRows(form));  // tiles that exist
  const Cut first = CutOf(form.first, false, usual, routed ? 1 : kMaxSplits);  // sums of many rows are too long
  const Cut second = CutOf(form.first + 1, true, usual, kMaxSplits);
  const std::uint64_t of_first = first.splits > 1 ? first.splits * static_cast<std::uint64_t>(meaning_.wide()) : 0;
  const std::uint64_t of_second = second.splits * static_cast<std::uint64_t>(meaning_.columns);
  const std::uint64_t between = Part(rows * static_cast<std::uint64_t>(meaning_.hidden) * Size(meaning_.dtype()));
  const std::uint64_t sums = Part(rows * std::max(of_first, of_second) * sizeof(float));
  const std::uint64_t ints = routed ? Part((rows + tiles * kIntsOfTile + 1) * sizeof(int)) : 0;
  return {form, tiles, first, second, between, sums, ints};
}

bool ExpertsCudaKernel::IsForProducts(std::uint64_t rows) const {
  const auto& sort = kernel().variants[kExpertsSort].shape.As<ExpertsVariant>();
  return rows >= sort.least_rows * static_cast<std::uint64_t>(meaning_.experts);
}

void ExpertsCudaKernel::Launch(std::size_t variant, std::uint64_t blocks, ExpertsParams* params, Stream stream) const {
  if (blocks > kMaxInts) throw Error("a mixture of experts of more blocks than a launch can have");
  launcher_.Launch(variant, static_cast<unsigned>(blocks), reinterpret_cast<unsigned char*>(params), stream);
}

void ExpertsCudaKernel::LaunchOver(std::size_t variant, std::uint64_t threads, ExpertsParams* params,
                                   Stream stream) const {
  Launch(variant, CeilDiv(threads, kernel().variants[variant].threads), params, stream);
}

void ExpertsCudaKernel::Compute(OrtKernelContext* context) const {
  const ExpertsCall call = OpenCall(meaning_, context);
  if (call.y == nullptr) return;
  CheckAlignment(call);
  const Stream stream = launcher_.Enter(context);
  const auto tokens = static_cast<std::uint64_t>(call.tokens);
  const std::uint64_t rows = tokens * static_cast<std::uint64_t>(meaning_.chosen);
  if (rows > kMaxInts) throw Error("a mixture of experts of " + std::to_string(rows) + " choices, above 2^31 - 1");
  ExpertsParams params{};
  params.x = call.x;
  params.ids = reinterpret_cast<const long long*>(call.ids);
  params.factors = call.factors;
  std::copy_n(call.weight, 2, params.weight);
  std::copy_n(call.bias, 2, params.bias);
  params.y = call.y;
  params.rows = static_cast<int>(rows);
  const Work work = WorkOf(tokens);
  if (IsForProducts(rows) && products_.Run(stream)) return RunProducts(call, params, work.bytes(), stream, context);
  CallScratch scratch(allocator_, context);
  RunWork(work, params, static_cast<char*>(scratch.Of(work.bytes())), stream);
}

void ExpertsCudaKernel::RunWork(const Work& work, ExpertsParams params, char* memory, Stream stream) const {
  const auto rows = static_cast<std::uint64_t>(params.rows);
  const ExpertsForm& form = work.form;
  params.between = memory;
  params.sums = reinterpret_cast<float*>(memory + work.between);
  params.splits[0] = static_cast<int>(work.first.splits);
  params.splits[1] = static_cast<int>(work.second.splits);
  params.max_tiles = static_cast<int>(work.tiles);
  if (form.route != ExpertsForm::kNone) {
    params.order = reinterpret_cast<int*>(memory + work.between + work.sums);
    params.tiles = params.order + rows;
    params.tile_count = params.tiles + work.tiles * kIntsOfTile;
    Launch(form.route, 1, &params, stream);
  }
  Launch(form.first, work.tiles * work.first.columns * work.first.splits, &params, stream);
  const auto hidden = static_cast<std::uint64_t>(meaning_.hidden);
  if (work.first.splits > 1) LaunchOver(kExpertsActivate, rows * hidden, &params, stream);
  Launch(form.first + 1, work.tiles * work.second.columns * work.second.splits, &params, stream);
  const auto chosen = static_cast<std::uint64_t>(meaning_.chosen),
             columns = static_cast<std::uint64_t>(meaning_.columns);
  LaunchOver(kExpertsJoin, rows / chosen * columns / kJoined, &params, stream);
}

// The host waits before rows are sorted, so that the GPU sorts while the host begins with the products.
void ExpertsCudaKernel::RunProducts(const ExpertsCall& call, ExpertsParams params, std::uint64_t min_bytes,
                                    Stream stream, const OrtKernelContext* context) const {
  const ExpertsForm& form = *(std::end(kExpertsForms) - 1);
  const auto rows = static_cast<std::uint64_t>(params.rows);
  const auto columns = static_cast<std::uint64_t>(meaning_.columns),
             hidden = static_cast<std::uint64_t>(meaning_.hidden);
  const std::uint64_t tiles = MaxTiles(form, rows), size = Size(meaning_.dtype());
  const auto part = [&](std::uint64_t width) { return Part((rows + ExpertsProducts::Behind(rows)) * width * size); };
  const std::uint64_t sorted = part(columns), wide = part(static_cast<std::uint64_t>(meaning_.wide()));
  const std::uint64_t between = part(hidden), ints = Part((2 * rows + tiles * kIntsOfTile + 1) * sizeof(int));
  CallScratch scratch(allocator_, context);
  char* const memory = static_cast<char*>(scratch.Of(std::max(sorted + wide + between + ints, min_bytes)));
  params.sorted = memory;
  params.products = memory + sorted;
  params.between = memory + sorted + wide;
  params.order = reinterpret_cast<int*>(memory + sorted + wide + between);
  params.tiles = params.order + rows;
  params.tile_count = params.tiles + tiles * kIntsOfTile;
  params.places = params.tile_count + 1;
  params.max_tiles = static_cast<int>(tiles);
  Launch(form.route, 1, &params, stream);
  const std::vector<ExpertRows> experts = products_.Read(params.tiles, tiles, stream);
  const std::uint64_t vector = kAccessBytes / size;
  Launch(kExpertsSort, rows, &params, stream);
  products_.Enqueue(false, {call.weight[0], params.sorted, params.products}, experts, stream, context);
  LaunchOver(kExpertsActivateSorted, rows * hidden / vector, &params, stream);
  products_.Enqueue(true, {call.weight[1], params.between, params.sorted}, experts, stream, context);
  LaunchOver(kExpertsJoinSorted, static_cast<std::uint64_t>(call.tokens) * columns / vector, &params, stream);
}

}  // namespace onnxopt::cuda
