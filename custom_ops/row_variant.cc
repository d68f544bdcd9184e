#include "row_variant.h"

#include <algorithm>
#include <cstring>

#include "cuda_variant.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMaxGrid = 0x7fffffff;
constexpr std::uint64_t kShortForCluster = 16384;  // columns below which one block a row is enough

// Element k of every row is element k of the input.
bool ByColumn(const Access& access, std::uint64_t columns) {
  return access.runs == 1 && access.run[0].div == 1 && access.run[0].mod == columns;
}

// Vectors lie in one cell of the input, or neighbours in it.
bool VectorsFit(const Access& access, unsigned vector) {
  for (std::size_t k = 0; k < access.runs; ++k) {
    if (access.run[k].mod % vector != 0 && access.run[k].div == 1) return false;
    if (access.run[k].div > 1 && access.run[k].div % vector != 0) return false;
  }
  return true;
}

// The elements of a row lie side by side.
bool DenseInRow(const Access& access, std::uint64_t columns) {
  return access.runs > 0 && access.run[0].div == 1 && access.run[0].mod % columns == 0;
}

bool HeldInputFits(char mode, const Access& access, const Grid& grid, unsigned vector) {
  switch (mode) {
    case 'F':
      return access.Flat(grid.domain.count) || grid.domain.count == 1;
    case 'K':
      return ByColumn(access, grid.columns) && (grid.outer > 1 || grid.domain.count == grid.columns);
    case 'D':
      return DenseInRow(access, grid.columns) && VectorsFit(access, vector);
    case 'C':
      return access.runs == 1 && access.run[0].div > 1 && VectorsFit(access, vector);
    default:
      return VectorsFit(access, vector);
  }
}

// Whether a row lies in registers, and every operand can be moved in vectors: a held kernel does nothing else.
bool HeldFits(const Kernel& kernel, const Variant& variant, const Grid& grid) {
  const std::uint64_t capacity = std::uint64_t{variant.lanes} * variant.unroll * variant.vector;
  if (grid.inner != 1 || grid.columns == 0 || grid.columns > capacity || grid.columns % variant.vector != 0)
    return false;
  if (variant.columns != 0 && variant.columns != grid.columns) return false;
  const RowProgram& program = kernel.rows;
  for (std::size_t k = 0; k < program.inputs.size(); ++k) {
    if (program.operands[k].row) continue;
    if (!HeldInputFits(variant.modes[k], grid.domain.access[k], grid, variant.vector)) return false;
    const Access& access = grid.domain.access[k];
    const bool loads = access.runs > 0 && access.run[0].div == 1;  // vectors, not one element for all of them
    if (loads && !Aligned(grid.domain.input[k], program.inputs[k], variant.vector)) return false;
  }
  for (const std::size_t k : program.Stored(false)) {
    if (!Aligned(grid.domain.output[k], program.outputs[k], variant.vector)) return false;
  }
  return true;
}

// Several blocks a row pay where there are too few rows to give every multiprocessor one.
bool ClusterPays(const Grid& grid, const Gpu& gpu) {
  return grid.columns > kShortForCluster && grid.rows() < std::uint64_t{gpu.multiprocessors} * 2;
}

bool Fits(const Kernel& kernel, const Variant& variant, const Grid& grid, const Gpu& gpu, bool fits32) {
  if (variant.index == 32 && !fits32) return false;
  if (variant.cluster > 1 && !gpu.clusters) return false;
  switch (variant.layout) {
    case Layout::kHeld:
      return HeldFits(kernel, variant, grid);
    case Layout::kLooped:
      return grid.inner == 1 && (variant.cluster == 1 || ClusterPays(grid, gpu));
    default:
      return grid.inner > 1;
  }
}

}  // namespace

bool RowVariantFits(const Kernel& kernel, const Variant& variant, const Grid& grid, const Gpu& gpu) {
  return Fits(kernel, variant, grid, gpu, Fits32(grid.domain, kernel.rows.inputs.size()));
}

std::size_t ChooseRowVariant(const Kernel& kernel, const Grid& grid, const Gpu& gpu) {
  const std::size_t inputs = kernel.rows.inputs.size();
  for (std::size_t k = 0; k < inputs; ++k) {
    if (grid.domain.access[k].runs > static_cast<std::size_t>(kMaxTerms)) return kernel.variants.size();
  }
  const bool fits32 = Fits32(grid.domain, inputs);
  std::size_t k = 0;
  while (k < kernel.variants.size() && !Fits(kernel, kernel.variants[k], grid, gpu, fits32)) ++k;
  return k;
}

void FillRowParams(const Kernel& kernel, const Variant& variant, const Grid& grid, unsigned char* block) {
  const std::size_t outputs = kernel.outputs.size();
  const unsigned long long sizes[] = {grid.rows(), grid.columns, grid.inner};
  std::memcpy(block, sizes, sizeof(sizes));
  std::memcpy(block + kRowOutputsAt, static_cast<const void*>(grid.domain.output), outputs * sizeof(void*));
  FillInputs(kernel.inputs, variant, grid.domain, block + RowInputsAt(outputs));
}

unsigned RowGridSize(const Variant& variant, const Grid& grid) {
  std::uint64_t blocks = 0;
  switch (variant.layout) {
    case Layout::kHeld: {
      const std::uint64_t rows = std::max(1U, variant.threads * variant.cluster / variant.lanes);
      blocks = ((grid.rows() - 1) / rows + 1) * variant.cluster;
      break;
    }
    case Layout::kLooped:
      blocks = grid.rows() * variant.cluster;
      break;
    default:
      blocks = grid.outer * ((grid.inner - 1) / 32 + 1);  // without vectors; those left over return at once
  }
  if (blocks > kMaxGrid) throw Error(std::to_string(grid.rows()) + " rows are too many for one launch");
  return static_cast<unsigned>(blocks);
}

}  // namespace onnxopt::cuda
