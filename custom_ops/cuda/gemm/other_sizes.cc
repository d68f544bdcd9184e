#include "cuda/gemm/other_sizes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "kernel_file/measured/gemm_algorithms.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

using cublaslt::Candidate;

// From 2^(-kSmaller / 2) to 2^(kLarger / 2) times the rows of the product that runs.
constexpr int kSmaller = 18;
constexpr int kLarger = 10;
constexpr std::int64_t kLoadedRows = 64;  // over which a kernel runs that is to be loaded

PlanKey WithRows(PlanKey key, std::int64_t rows) {
  key.m = rows;
  return key;
}

// What stands for all products that differ in the number of rows.
std::string AnyRows(const cublaslt::Api& api, const Gemm& gemm, const PlanKey& key) {
  return Plan(api, gemm, WithRows(key, 1)).Describe();
}

// Whether nothing has run an algorithm for such products, whatever their sizes, in a context. It counts as run from now
// on.
bool IsNew(Context context, const Plan& plan, const cublaslt::Algorithm& algorithm) {
  static std::mutex mutex;
  using Known = std::tuple<Context, Dtype, Dtype, std::string, std::array<std::uint64_t, 8>>;
  static auto* const keys = new std::set<Known>;
  std::array<std::uint64_t, 8> words{};
  std::copy(std::begin(algorithm.data), std::end(algorithm.data), words.begin());
  const std::lock_guard<std::mutex> lock(mutex);
  return keys->emplace(context, plan.key().operands, plan.gemm().dtype(), plan.DescribeKind(), words).second;
}

}  // namespace

void ChooseForSizes(const ProductCall& call, const std::string& gpu, const Plan& plan) {
  const PlanKey& key = plan.key();
  if (key.batch != 1) return;
  std::vector<cublaslt::Algorithm> algorithms;
  for (int power = -kSmaller; power <= kLarger; ++power) {
    constexpr double kSqrt2 = 1.4142135623730951;
    const double factor = std::ldexp(power % 2 == 0 ? 1.0 : kSqrt2, (power - (power & 1)) / 2);
    const double rows = std::round(static_cast<double>(key.m) * factor);
    if (rows < 1 || rows > std::numeric_limits<std::int32_t>::max()) continue;
    Plan other(call.api, plan.gemm(), WithRows(key, static_cast<std::int64_t>(rows)));
    for (const Candidate& candidate : other.Candidates(call.handle, 1)) algorithms.push_back(candidate.algorithm);
  }
  Algorithms::Get().AddExpected(gpu, call.api.cublasLtGetVersion(), AnyRows(call.api, plan.gemm(), key), algorithms);
}

void LoadForSizes(const ProductCall& call, const std::string& gpu, const Operands& operands, const Gemm& gemm,
                  const PlanKey& key) {
  if (key.batch != 1) return;
  const std::vector<cublaslt::Algorithm> algorithms =
      Algorithms::Get().Expected(gpu, call.api.cublasLtGetVersion(), AnyRows(call.api, gemm, key));
  if (algorithms.empty()) return;
  Plan small(call.api, gemm, WithRows(key, kLoadedRows));
  const std::size_t of_a = static_cast<std::size_t>(kLoadedRows * key.k) * Size(key.operands);
  const std::size_t of_result = static_cast<std::size_t>(kLoadedRows * key.n) * Size(gemm.dtype());
  for (const cublaslt::Algorithm& algorithm : algorithms) {
    Candidate candidate{};
    if (!IsNew(call.context, small, algorithm) || !small.Revive(call.handle, algorithm, &candidate)) continue;
    constexpr std::size_t kAligned = 256;
    const auto up = [](std::size_t bytes) { return RoundUp(bytes, kAligned); };
    try {
      auto* const memory = static_cast<char*>(call.scratch(up(of_a) + 2 * up(of_result) + candidate.workspace));
      char* const result = memory + up(of_a);
      Operands few = operands;
      few.a = memory;
      few.output = result;
      if (few.residual != nullptr) few.residual = result + up(of_result);
      small.RunWith(candidate, call.handle, few, result + 2 * up(of_result), call.stream);
    } catch (const Error&) {
      continue;  // nobody asked for it
    }
  }
}

}  // namespace onnxopt::cuda
