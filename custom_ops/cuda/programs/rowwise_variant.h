// Which variant of a rowwise kernel fits a grid of rows, and its parameter block.
#pragma once

#include "call/programs/rowwise.h"
#include "program/programs/rowwise_params.h"

namespace onnxopt::cuda {

// What the GPU at hand can do: its multiprocessors, shared memory of a block, and blocks that can form a cluster.
struct Gpu {
  unsigned multiprocessors;
  unsigned shared;
  unsigned largest_cluster;
};

// The first variant that fits, or variants.size() if none does.
std::size_t ChooseRowVariant(const RowProgram& program, const std::vector<Variant>& variants, const Grid& grid,
                             const Gpu& gpu);

// Whether a variant may run this grid, whatever comes before it in the kernel's order.
bool RowVariantFits(const RowProgram& program, const Variant& variant, const Grid& grid, const Gpu& gpu);

// Writes rowwise/abi.h's RowParams for this variant into `block` of kMaxParams bytes.
void FillRowParams(const RowProgram& program, const Variant& variant, const Grid& grid, unsigned char* block);

// How a split variant cuts rows: parts of a row, columns of a part, and blocks of a launch.
struct Cut {
  std::uint64_t parts;
  std::uint64_t columns;
  std::uint64_t blocks;
};

Cut CutRows(const Variant& variant, const Grid& grid, const Gpu& gpu);

// Parts of about as many blocks as `wanted`. tiles: of rows, a block each where nothing is cut. step: columns, of which
// a part has a multiple.
Cut CutColumns(std::uint64_t columns, std::uint64_t tiles, std::uint64_t step, std::uint64_t wanted);

// Bytes that the partial results of all stages and parts take at most.
std::size_t ScratchBytes(const RowProgram& program, const Grid& grid, const Cut& cut);

// Blocks of threads that cover the rows. resident: of a piped or ring variant, the clusters that run at once. Throws
// Error where there are more than a grid has.
unsigned RowGridSize(const Variant& variant, const Grid& grid, unsigned resident);

}  // namespace onnxopt::cuda
