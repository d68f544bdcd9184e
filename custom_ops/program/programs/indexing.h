// How a kernel with index operations reads its inputs: the C++ side of onnxopt/indexing.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "program/shape.h"

namespace onnxopt {

// More would not fit a kernel's parameter block.
constexpr std::size_t kMaxConditions = 8;

// factor * the product of symbols.
struct Extent {
  std::int64_t factor = 1;
  std::vector<std::uint32_t> symbols;

  // For these sizes of the symbols. Throws Error where it does not fit 64 bits.
  std::int64_t Value(const std::vector<std::int64_t>& sizes) const;
  // Whether it is 1 for all sizes.
  bool IsOne() const { return factor == 1 && symbols.empty(); }
};

struct IndexTerm {
  Extent div;
  Extent mod;
  Extent stride;
};

// Value `index` of the program, along a dim of `size` whose elements are `stride` apart.
struct IndexLookup {
  std::uint32_t index;
  Extent size;
  Extent stride;
};

struct InputAccess {
  std::uint32_t input;
  std::vector<Extent> offset;  // summands
  std::vector<IndexTerm> terms;
  std::vector<std::uint32_t> guards;
  std::optional<IndexLookup> lookup;
};

struct IndexCondition {
  std::int64_t offset;
  std::vector<IndexTerm> terms;
  std::vector<Extent> low;  // summands, as of `high`
  std::vector<Extent> high;
};

struct Symbol {
  std::uint32_t input;
  std::uint32_t axis;
};

struct Indexing {
  std::vector<Symbol> symbols;
  std::vector<std::vector<Extent>> dims;    // of every input
  std::vector<std::vector<Extent>> shapes;  // of every output
  std::vector<InputAccess> accesses;
  std::vector<IndexCondition> conditions;

  bool LooksUp() const;
  // Throws Error naming what breaks a rule of indexing.py.
  void Verify(std::size_t inputs, std::size_t outputs) const;
  // The same for a list of extents, each at least 1.
  void VerifyExtents(const std::vector<Extent>& extents, const std::string& where) const;
};

// low <= offset + form(i) < high.
struct Condition {
  Access form;
  std::int64_t offset;
  std::int64_t low;
  std::int64_t high;

  bool Holds(std::uint64_t i) const {
    const std::int64_t at = offset + form.Offset(i);
    return low <= at && at < high;
  }
};

// Narrows [*begin, *end) to where low <= start + t * step < high. What is left lies inside, also where it is empty.
inline void Narrow(std::int64_t start, std::int64_t step, std::int64_t low, std::int64_t high, std::int64_t* begin,
                   std::int64_t* end) {
  if (step == 0) {
    if (start < low || start >= high) *end = *begin;
    return;
  }
  if (step < 0) {  // the same with the number line turned around
    Narrow(-start, -step, 1 - high, 1 - low, begin, end);
    return;
  }
  const auto reach = [&](std::int64_t bound) {  // the first t with start + t * step >= bound
    return bound <= start ? 0 : (bound - start + step - 1) / step;
  };
  *begin = std::min(std::max(*begin, reach(low)), *end);
  *end = std::max(*begin, std::min(*end, reach(high)));
}

// The numbers of one call.
class Sizes {
 public:
  // Throws Error where the inputs' shapes are not those that the kernel was made for.
  Sizes(const Indexing& indexing, const Shape* inputs, std::size_t count);

  Shape OutputShape(std::size_t k) const;
  std::int64_t Value(const Extent& extent) const { return extent.Value(sizes_); }
  // The sum of these. Throws Error where it does not fit 64 bits.
  std::int64_t Sum(const std::vector<Extent>& summands) const;
  // The terms of access `k`, and its offset in elements. Both are as kernels.json says: reach.h checks them.
  Access Resolve(std::size_t k, std::int64_t* offset) const;
  Condition ResolveCondition(std::size_t k) const;

 private:
  void Fill(const std::vector<IndexTerm>& terms, Access* access) const;

  const Indexing& indexing_;
  std::vector<std::int64_t> sizes_;
};

}  // namespace onnxopt
