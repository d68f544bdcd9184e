#include "cpu/blocks/tiling.h"

#include <algorithm>

#include "program/generated/costs.h"

namespace onnxopt {
namespace {

using costs::cpu::kLongestPeriod;
using costs::cpu::kShortestRow;

// The longest row in which this input is dense or a single element. Rows of two inputs divide each other, as both are
// products of the domain's innermost dims.
std::uint64_t Row(const Access& access, std::uint64_t count) {
  if (access.runs == 0) return count;
  const Run& inner = access.run[0];
  return inner.div == 1 ? inner.mod : inner.div;
}

Lie LieInRow(const Access& access, std::uint64_t count) {
  if (access.runs == 0) return Lie::kOne;
  if (access.Flat(count)) return Lie::kFlat;
  return access.run[0].div == 1 ? Lie::kDense : Lie::kCell;
}

// After how many elements the input repeats.
std::uint64_t Period(const Access& access) {
  const Run& outer = access.run[access.runs - 1];
  return outer.div * outer.mod;
}

std::uint64_t Written(const Program& program, const Domain& domain) {
  std::uint64_t written = 0;
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    if (domain.output[k] != nullptr) written |= std::uint64_t{1} << k;
  }
  return written;
}

// Index maps of several accesses have no common rows: what is not flat is gathered, block by block.
Tiling TileIndexed(const Program& program, const Domain& domain) {
  Tiling tiling;
  tiling.row = domain.count;
  tiling.key.written = Written(program, domain);
  // ONNX Runtime's operators divide all elements that they are given; what conditions leave out is none of these.
  tiling.key.finds_zeros = !domain.conditional;
  for (std::size_t k = 0; k < program.leaves(); ++k) {
    const Access& access = domain.access[k];
    Lie& lie = tiling.key.lie[k];
    lie = Lie::kGather;
    if (domain.input[k] == nullptr) {
      lie = Lie::kCondition;
    } else if (access.runs == 0 && access.guards == 0) {
      lie = Lie::kOne;
    } else if (access.Flat(domain.count)) {
      lie = Lie::kFlat;
    }
  }
  return tiling;
}

}  // namespace

Tiling Tile(const Program& program, const Domain& domain) {
  Tiling tiling;
  tiling.row = domain.count;
  tiling.key.finds_zeros = true;
  if (domain.indexed) return TileIndexed(program, domain);
  const std::size_t inputs = program.inputs.size();
  for (std::size_t k = 0; k < inputs; ++k) tiling.row = std::min(tiling.row, Row(domain.access[k], domain.count));
  tiling.key.written = Written(program, domain);
  for (std::size_t k = 0; k < inputs; ++k) tiling.key.lie[k] = LieInRow(domain.access[k], domain.count);
  if (tiling.row >= kShortestRow || tiling.row == domain.count) return tiling;
  for (std::size_t k = 0; k < inputs; ++k) {
    Lie& lie = tiling.key.lie[k];
    if (lie == Lie::kOne || lie == Lie::kFlat) continue;
    const std::uint64_t period = Period(domain.access[k]);
    lie = period <= kLongestPeriod ? Lie::kPeriod : Lie::kGather;
    if (lie == Lie::kPeriod) tiling.key.period = std::max(tiling.key.period, static_cast<std::uint32_t>(period));
  }
  tiling.row = domain.count;
  return tiling;
}

}  // namespace onnxopt
