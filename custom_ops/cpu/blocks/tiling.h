// How a domain is cut into rows and blocks.
#pragma once

#include "call/programs/pointwise.h"
#include "cpu/blocks/plan.h"

namespace onnxopt {

struct Tiling {
  PlanKey key;
  std::uint64_t row;  // no block crosses a multiple of it
};

// Rows are as long as possible with every input dense or a single element in each. Where that is too short to be worth
// a block, blocks cross rows, and inputs that are broadcast inside them are gathered.
Tiling Tile(const Program& program, const Domain& domain);

}  // namespace onnxopt
