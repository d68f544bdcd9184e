#include "cuda/experts.h"

#include <algorithm>
#include <limits>
#include <string>

#include "experts/abi.h"
#include "kernel_file/experts.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMostInts = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMostFewRows = 256;  // that every block looks through (cuda_kernels/experts/rows.cuh)
constexpr std::uint64_t kAccessBytes = 16;
constexpr std::uint64_t kIntsOfTile = 3;

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

std::uint64_t ExpertsCudaKernel::ColumnBlocks(std::size_t variant, bool second) const {
  const std::uint64_t columns = kernel().variants[variant].shape.As<ExpertsTileShape>().columns;
  const bool halves = !second && meaning_.gated();
  return CeilDiv(static_cast<std::uint64_t>(second ? meaning_.columns : meaning_.hidden),
                 halves ? columns / 2 : columns);
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
  // An expert has at most one row of each token, so that one tile takes the rows of few tokens.
  const auto few_rows = kernel().variants[kExpertsFew].shape.As<ExpertsTileShape>().rows;
  const bool few = static_cast<std::uint64_t>(call.tokens) <= few_rows && rows <= kMostFewRows;
  const auto tile_rows = kernel().variants[kExpertsMany].shape.As<ExpertsTileShape>().rows;
  const std::uint64_t tiles = few ? std::min(rows, experts) : rows / tile_rows + std::min(rows, experts);
  const std::uint64_t between = Part(rows * static_cast<std::uint64_t>(meaning_.hidden) * Size(meaning_.dtype));
  const std::uint64_t results = Part(rows * static_cast<std::uint64_t>(meaning_.columns) * Size(meaning_.dtype));
  const std::uint64_t ints = few ? 0 : Part((rows + tiles * kIntsOfTile + 1) * sizeof(int));
  CallScratch scratch(allocator_, context);
  char* const memory = static_cast<char*>(scratch.Of(between + results + ints));
  ExpertsParams params{};
  params.x = call.x;
  params.ids = reinterpret_cast<const long long*>(call.ids);
  params.factors = call.factors;
  std::copy_n(call.weight, 2, params.weight);
  params.between = memory;
  params.results = memory + between;
  params.y = call.y;
  params.rows = static_cast<int>(rows);
  params.most_tiles = static_cast<int>(tiles);
  if (!few) {
    params.order = reinterpret_cast<int*>(memory + between + results);
    params.tiles = params.order + rows;
    params.tile_count = params.tiles + tiles * kIntsOfTile;
    Launch(kExpertsRoute, 1, &params, stream);
  }
  const std::size_t first = few ? kExpertsFew : kExpertsMany;
  for (const std::size_t product : {0, 1}) {
    Launch(first + product, tiles * ColumnBlocks(first + product, product == 1), &params, stream);
  }
  const std::uint64_t vectors =
      static_cast<std::uint64_t>(call.tokens * meaning_.columns) * Size(meaning_.dtype) / kAccessBytes;
  Launch(kExpertsJoin, CeilDiv(vectors, kernel().variants[kExpertsJoin].threads), &params, stream);
}

}  // namespace onnxopt::cuda
