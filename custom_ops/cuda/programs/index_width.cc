#include "cuda/programs/index_width.h"

#include <algorithm>
#include <cstdlib>

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMax32 = std::uint64_t{1} << 31U;

// The farthest that an access reaches from its first element, either way.
std::uint64_t Reach(const Access& access) {
  std::uint64_t reach = 0;
  for (std::size_t k = 0; k < access.runs; ++k) {
    const Run& run = access.run[k];
    reach += (run.mod - 1) * static_cast<std::uint64_t>(run.stride < 0 ? -run.stride : run.stride);
  }
  return reach;
}

// What is looked up may lie farther away than 32 bits tell.
bool AccessFits32(const Access& access) {
  return std::max({Reach(access), static_cast<std::uint64_t>(access.size), static_cast<std::uint64_t>(access.step)}) <
         kMax32;
}

bool ConditionFits32(const Condition& c) {
  const auto limit = static_cast<std::int64_t>(kMax32 / 2);
  return Reach(c.form) < kMax32 && std::max({std::abs(c.low), std::abs(c.high), std::abs(c.offset)}) < limit;
}

}  // namespace

bool Fits32(const Domain& domain, std::size_t leaves) {
  if (domain.count >= kMax32) return false;
  for (std::size_t k = 0; k < leaves; ++k) {
    const bool is_condition = domain.indexed && domain.input[k] == nullptr;
    if (is_condition ? !ConditionFits32(domain.ConditionOf(k)) : !AccessFits32(domain.access[k])) return false;
  }
  return true;
}

}  // namespace onnxopt::cuda
