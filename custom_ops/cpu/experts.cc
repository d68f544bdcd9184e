#include "cpu/experts.h"

#include <algorithm>
#include <vector>

#include "cpu/blocks/peephole.h"
#include "cpu/evaluate/best_evaluator.h"
#include "cpu/first_failure.h"
#include "cpu/pointwise.h"

namespace onnxopt {
namespace {

// `count` elements behind the first `at`, as float32.
std::vector<float> Widened(Dtype dtype, const void* data, std::int64_t at, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  const char* const from = static_cast<const char*>(data) + static_cast<std::size_t>(at) * Size(dtype);
  const StepFunction load = BestEvaluator().load(dtype);
  if (load == nullptr) {
    std::copy_n(reinterpret_cast<const float*>(from), values.size(), values.data());
  } else {
    load(values.data(), from, nullptr, nullptr, values.size());
  }
  return values;
}

// Rounds to a dtype and writes behind the first `at` elements.
void Store(Dtype dtype, const std::vector<float>& values, std::int64_t at, void* data) {
  char* const to = static_cast<char*>(data) + static_cast<std::size_t>(at) * Size(dtype);
  const StepFunction store = BestEvaluator().store(dtype);
  if (store == nullptr) {
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(to));
  } else {
    store(to, values.data(), nullptr, nullptr, values.size());
  }
}

std::vector<float> Rounded(Dtype dtype, const std::vector<float>& values) {
  std::vector<float> stored(values.size());  // room for every dtype
  Store(dtype, values, 0, stored.data());
  return Widened(dtype, stored.data(), 0, static_cast<std::int64_t>(values.size()));
}

// x [depth] times a weight [depth, width], of which element `first` is the first.
std::vector<float> Product(Dtype dtype, const std::vector<float>& x, const void* weight, std::int64_t first,
                           std::int64_t width) {
  std::vector<float> sums(static_cast<std::size_t>(width));
  for (std::size_t k = 0; k < x.size(); ++k) {
    const std::vector<float> row = Widened(dtype, weight, first + static_cast<std::int64_t>(k) * width, width);
    for (std::size_t j = 0; j < row.size(); ++j) sums[j] += x[k] * row[j];
  }
  return sums;
}

// bias: [experts, as many as there are sums], or nullptr.
void AddBias(Dtype dtype, const void* bias, std::int64_t expert, std::vector<float>* sums) {
  if (bias == nullptr) return;
  const auto width = static_cast<std::int64_t>(sums->size());
  const std::vector<float> row = Widened(dtype, bias, expert * width, width);
  for (std::size_t j = 0; j < row.size(); ++j) (*sums)[j] += row[j];
}

// The even elements, and behind them the odd ones.
std::vector<float> Apart(const std::vector<float>& values) {
  std::vector<float> halves(values.size());
  for (std::size_t j = 0; j < values.size(); ++j) halves[j % 2 * (values.size() / 2) + j / 2] = values[j];
  return halves;
}

}  // namespace

ExpertsCpuKernel::ExpertsCpuKernel(const Kernel& kernel)
    : FusedKernel(kernel),
      meaning_(kernel.meaning.As<Experts>()),
      activation_(Peephole(meaning_.program)),
      plans_(activation_) {}

std::vector<float> ExpertsCpuKernel::Expert(const ExpertsCall& call, const std::vector<float>& x,
                                            std::int64_t expert) const {
  const Dtype dtype = meaning_.dtype;
  const std::int64_t depth = meaning_.columns;
  std::vector<float> sums = Product(dtype, x, call.weight[0], expert * depth * meaning_.wide(), meaning_.wide());
  AddBias(dtype, call.bias[0], expert, &sums);
  if (meaning_.interleaved) sums = Apart(sums);
  const auto hidden = static_cast<std::size_t>(meaning_.hidden);
  std::vector<float> stored(hidden);  // room for every dtype
  const Shape row{1, {meaning_.hidden}};
  Domain domain;
  domain.count = hidden;
  domain.output[0] = stored.data();
  for (std::size_t half = 0; half < activation_.inputs.size(); ++half) {
    domain.input[half] = sums.data() + half * hidden;
    Collapse(row, row, &domain.access[half]);
  }
  const Tiling tiling = Tile(activation_, domain);
  RunBlocks(activation_, *plans_.For(tiling.key), tiling, domain, 0, hidden);
  const std::vector<float> between = Widened(dtype, stored.data(), 0, meaning_.hidden);
  std::vector<float> results = Product(dtype, between, call.weight[1], expert * meaning_.hidden * depth, depth);
  AddBias(dtype, call.bias[1], expert, &results);
  return results;
}

void ExpertsCpuKernel::Token(const ExpertsCall& call, std::int64_t token) const {
  const std::vector<float> x = Widened(meaning_.dtype, call.x, token * meaning_.columns, meaning_.columns);
  const std::vector<float> factors = Widened(meaning_.factors, call.factors, token * meaning_.chosen, meaning_.chosen);
  std::vector<float> sum(x.size());
  for (std::int64_t c = 0; c < meaning_.chosen; ++c) {
    const std::int64_t id = call.ids[token * meaning_.chosen + c];
    const std::int64_t expert = std::clamp<std::int64_t>(id, 0, meaning_.experts - 1);
    const std::vector<float> results = Rounded(meaning_.dtype, Expert(call, x, expert));
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += factors[static_cast<std::size_t>(c)] * results[j];
  }
  Store(meaning_.dtype, sum, token * meaning_.columns, call.y);
}

void ExpertsCpuKernel::Compute(OrtKernelContext* context) const {
  const ExpertsCall call = OpenCall(meaning_, context);
  if (call.y == nullptr) return;
  struct Job {
    const ExpertsCpuKernel* kernel;
    const ExpertsCall* call;
    FirstFailure failure;
  } job{this, &call, {}};
  const auto run = [](void* data, std::size_t token) {
    auto* const all = static_cast<Job*>(data);
    all->failure.Guard([&] { all->kernel->Token(*all->call, static_cast<std::int64_t>(token)); });
  };
  Check(Ort().KernelContext_ParallelFor(context, run, static_cast<std::size_t>(call.tokens), 0, &job));
  job.failure.Rethrow();
}

}  // namespace onnxopt
