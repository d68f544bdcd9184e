#include "cuda/experts/products.h"

#include <algorithm>
#include <string>

#include "cuda/gemm/choose.h"
#include "cuda/gemm/handle.h"
#include "cuda/launch/provider_options.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::size_t kIntsOfTile = 3;
using costs::experts::kMinStep;
using costs::experts::kSteps;

std::uint64_t StepOf(std::uint64_t rows) {
  std::uint64_t power = 1;
  while (power * 2 <= rows) power *= 2;
  return std::max(kMinStep, power / kSteps);
}

std::int64_t RoundedUp(std::int64_t rows) { return RoundUp(rows, StepOf(static_cast<std::uint64_t>(rows))); }

Gemm ProductOf(Dtype dtype) {
  Gemm gemm;
  gemm.inputs = {dtype, dtype};
  gemm.outputs = {dtype};
  return gemm;
}

}  // namespace

struct ExpertsProducts::Call {
  const cublaslt::Api& api;
  cublaslt::Handle handle;
  Context context;
  Stream stream;
  const Scratch& scratch;
};

ExpertsProducts::ExpertsProducts(const Experts& meaning, const Driver& driver, const Allocator& allocator)
    : meaning_(meaning), driver_(driver), allocator_(allocator), gemm_(ProductOf(meaning.dtype())) {}

bool ExpertsProducts::Run(Stream stream) const {
  if (cublaslt::Find() == nullptr) return false;
  int capturing = 0;
  driver_.Check(driver_.cuStreamIsCapturing(stream, &capturing), "cannot ask whether the stream is capturing");
  return capturing == 0;
}

std::uint64_t ExpertsProducts::Behind(std::uint64_t rows) { return StepOf(rows); }

std::vector<ExpertRows> ExpertsProducts::Read(const int* tiles, std::uint64_t most, Stream stream) const {
  std::vector<int> read(most * kIntsOfTile + 1);
  const std::string problem = "cannot read how many rows each expert has";
  driver_.Check(driver_.cuMemcpyDtoHAsync(read.data(), reinterpret_cast<std::uintptr_t>(tiles),
                                          read.size() * sizeof(int), stream),
                problem);
  driver_.Check(driver_.cuStreamSynchronize(stream), problem);
  const auto count = static_cast<std::uint64_t>(read.back());
  if (count > most) throw Error(problem + ": found " + std::to_string(read.back()) + " tiles of rows");
  std::vector<ExpertRows> experts;
  for (std::uint64_t k = 0; k < count; ++k) {
    const int* const tile = read.data() + k * kIntsOfTile;
    if (experts.empty() || experts.back().expert != tile[0]) experts.push_back({tile[0], tile[1], 0});
    experts.back().count += tile[2];
  }
  return experts;
}

void ExpertsProducts::Enqueue(bool second, const ExpertsProductAt& at, const std::vector<ExpertRows>& experts,
                              Stream stream, const OrtKernelContext* context) const {
  const cublaslt::Api* const api = cublaslt::Find();
  if (api == nullptr) throw Error("no cuBLASLt for a mixture of experts");
  const std::int64_t depth = second ? meaning_.hidden : meaning_.columns;
  const std::int64_t width = second ? meaning_.columns : meaning_.wide();
  const auto size = static_cast<std::int64_t>(Size(meaning_.dtype()));
  const auto alignment = [&](const void* data, std::int64_t elements) {  // of data at any multiple of so many elements
    return std::min(Alignment(data), Alignment(static_cast<std::uintptr_t>(elements * size)));
  };
  const unsigned written = alignment(at.results, width);
  const bool tf32 = meaning_.dtype() == Dtype::kFloat32 && UsesTf32(context);
  PlanKey key{0,
              width,
              depth,
              1,
              0,
              0,
              0,
              width,
              alignment(at.rows, depth),
              alignment(at.weight, depth * width),
              written,
              written,
              tf32,
              true,
              meaning_.dtype()};
  Context device = nullptr;
  driver_.Check(driver_.cuCtxGetCurrent(&device), "cannot ask for the CUDA context");
  CallScratch memory(allocator_, context);
  const Scratch scratch = [&](std::size_t bytes) { return memory.Of(bytes); };
  const std::lock_guard<std::mutex> lock(mutex_);
  const Call call{*api, HandleOf(device, *api), device, stream, scratch};
  for (const ExpertRows& of : experts) {
    key.m = RoundedUp(of.count);
    const Operands operands{static_cast<const char*>(at.rows) + of.first * depth * size,
                            static_cast<const char*>(at.weight) + of.expert * depth * width * size, nullptr, nullptr,
                            static_cast<char*>(at.results) + of.first * width * size};
    PlanFor(call, key, operands).Run(call.handle, operands, scratch, stream);
  }
}

Plan& ExpertsProducts::PlanFor(const Call& call, const PlanKey& key, const Operands& operands) const {
  for (const auto& plan : plans_) {
    if (plan->key() == key) return *plan;
  }
  auto plan = std::make_unique<Plan>(call.api, gemm_, key);
  const Shape rows{2, {key.m, key.k}};
  Choose({driver_, call.api, call.handle, call.context, call.stream, false, false, false, rows, call.scratch}, operands,
         plan.get());
  plans_.push_back(std::move(plan));
  return *plans_.back();
}

}  // namespace onnxopt::cuda
