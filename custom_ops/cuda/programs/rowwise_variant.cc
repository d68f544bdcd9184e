#include "cuda/programs/rowwise_variant.h"

#include <algorithm>
#include <cstring>

#include "cuda/programs/index_width.h"
#include "cuda/programs/pointwise_variant.h"
#include "device/access_modes.h"
#include "kernel_file/programs/rowwise.h"
#include "program/generated/costs.h"
#include "program/programs/rowwise_params.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMaxGrid = 0x7fffffff;
using costs::rowwise::kBlocksOfLoop;
using costs::rowwise::kBlocksOfSplit;
using costs::rowwise::kClusterRows;
using costs::rowwise::kMaxParts;
using costs::rowwise::kShortForCluster;
using costs::rowwise::kSplitStridedColumns;

// Element k of every row is element k of the input.
bool ByColumn(const Access& access, std::uint64_t columns) {
  return access.runs == 1 && access.run[0].stride == 1 && access.run[0].div == 1 && access.run[0].mod == columns;
}

// Vectors lie in one cell of the input, or neighbours in it.
bool VectorsFit(const Access& access, unsigned vector) {
  for (std::size_t k = 0; k < access.runs; ++k) {
    if (access.run[k].mod % vector != 0 && access.run[k].div == 1) return false;
    if (access.run[k].div > 1 && access.run[k].div % vector != 0) return false;
  }
  return true;
}

// Whether where vectors begin is as aligned as the input is.
bool StepsFit(const Access& access, unsigned vector) {
  for (std::size_t k = 0; k < access.runs; ++k) {
    if (access.run[k].div > 1 && access.run[k].stride % static_cast<std::int64_t>(vector) != 0) return false;
  }
  return true;
}

// The elements of a row lie side by side.
bool DenseInRow(const Access& access, std::uint64_t columns) {
  return access.runs > 0 && access.run[0].div == 1 && access.run[0].stride == 1 && access.run[0].mod % columns == 0;
}

bool HeldInputFits(char mode, const Access& access, const Grid& grid, unsigned vector) {
  switch (mode) {
    case access_mode::kFlat:
      return access.Flat(grid.domain.count) || grid.domain.count == 1;
    case access_mode::kByColumn:
      return ByColumn(access, grid.columns) && (grid.outer > 1 || grid.domain.count == grid.columns);
    case access_mode::kDense:
      return DenseInRow(access, grid.columns) && VectorsFit(access, vector) && StepsFit(access, vector);
    case access_mode::kCell:
      return access.runs == 1 && access.run[0].div > 1 && VectorsFit(access, vector);
    default:
      return VectorsFit(access, vector);
  }
}

// Of layouts that take rows wherever they begin.
bool InputFitsAnywhere(char mode, const Access& access, const Grid& grid) {
  switch (mode) {
    case access_mode::kFlat:
      return access.Flat(grid.domain.count);
    case access_mode::kByColumn:
      return ByColumn(access, grid.columns) && (grid.outer > 1 || grid.domain.count == grid.columns);
    case access_mode::kDense:
      return DenseInRow(access, grid.columns);
    default:
      return mode == access_mode::kAny;
  }
}

// Of index operations: what is loaded in the general way or behind guards may lie anywhere, and a condition's letter
// says what tells it: the column, or the row.
bool IndexedFits(char mode, std::size_t k, const Grid& grid) {
  const bool is_condition = grid.domain.input[k] == nullptr;
  const Access& access = is_condition ? grid.domain.ConditionOf(k).form : grid.domain.access[k];
  if (mode == access_mode::kAny) return true;
  if (mode == access_mode::kByColumn) return ByColumn(access, grid.columns);
  if (mode != access_mode::kDense) return false;
  if (!is_condition) return DenseInRow(access, grid.columns);
  return std::all_of(access.run, access.run + access.runs, [&](const Run& run) { return run.div % grid.columns == 0; });
}

// Whether an access is one that only index operations have.
bool IsIndexed(const RowProgram& program, char mode, std::size_t k, const Grid& grid) {
  return program.index && (mode == access_mode::kAny || grid.domain.access[k].guards != 0);
}

// Whether a row lies in registers, and every operand can be moved in vectors: a held kernel does nothing else.
bool HeldFits(const RowProgram& program, const Variant& variant, const Grid& grid) {
  const RowShape& shape = variant.shape.As<RowShape>();
  const bool ragged = shape.layout == Layout::kRagged;
  const std::uint64_t capacity = std::uint64_t{shape.lanes} * variant.unroll * variant.vector;
  if (grid.inner != 1 || grid.columns == 0 || grid.columns + (ragged ? variant.vector - 1 : 0) > capacity) return false;
  if (!ragged && grid.columns % variant.vector != 0) return false;
  if (shape.columns != 0 && shape.columns != grid.columns) return false;
  const std::vector<Dtype> leaves = program.Leaves();
  for (std::size_t k = 0; k < leaves.size(); ++k) {
    const Access& access = grid.domain.access[k];
    const char mode = variant.modes[k];
    if (program.operands[k].row) continue;
    if (IsIndexed(program, mode, k, grid)) {
      if (!IndexedFits(mode, k, grid)) return false;
      continue;
    }
    if (ragged ? !InputFitsAnywhere(mode, access, grid) : !HeldInputFits(mode, access, grid, variant.vector))
      return false;
    const bool loads = access.runs > 0 && access.run[0].div == 1;  // vectors, not one element for all of them
    const bool anywhere = ragged && mode != access_mode::kFlat;
    if (loads && !anywhere && !Aligned(grid.domain.input[k], leaves[k], variant.vector)) return false;
  }
  for (const std::size_t k : program.Stored(false)) {
    if (!Aligned(grid.domain.output[k], program.outputs[k], variant.vector)) return false;
  }
  return true;
}

bool LoopedFits(const RowProgram& program, const Variant& variant, const Grid& grid) {
  for (std::size_t k = 0; k < program.leaves(); ++k) {
    if (program.operands[k].row) continue;
    const char mode = variant.modes[k];
    if (IsIndexed(program, mode, k, grid) ? !IndexedFits(mode, k, grid)
                                          : !InputFitsAnywhere(mode, grid.domain.access[k], grid)) {
      return false;
    }
  }
  return grid.inner == 1;
}

// Whether a strided variant's vectors, of elements of neighbouring rows, fit every operand.
bool StridedFits(const RowProgram& program, const Variant& variant, const Grid& grid) {
  const RowShape& shape = variant.shape.As<RowShape>();
  const std::uint64_t held = std::uint64_t{shape.lanes} * variant.unroll;
  const bool holds = shape.layout == Layout::kStrided && variant.unroll > 0;
  if (grid.inner == 1 || (holds && grid.columns > held)) return false;
  if (grid.inner % variant.vector != 0) return false;
  const std::vector<Dtype> leaves = program.Leaves();
  for (std::size_t k = 0; k < leaves.size(); ++k) {
    const Access& access = grid.domain.access[k];
    if (program.operands[k].row || IsIndexed(program, variant.modes[k], k, grid)) continue;
    if (!InputFitsAnywhere(variant.modes[k], access, grid)) return false;
    if (!VectorsFit(access, variant.vector)) return false;
    const bool loads = access.runs > 0 && access.run[0].div == 1;
    if (loads && !Aligned(grid.domain.input[k], leaves[k], variant.vector)) return false;
  }
  for (const std::size_t k : program.Stored(false)) {
    if (!Aligned(grid.domain.output[k], program.outputs[k], variant.vector)) return false;
  }
  return true;
}

// Blocks of threads that cover all strided rows, of neighbouring rows each.
std::uint64_t StridedTiles(const Variant& variant, const Grid& grid) {
  const std::uint64_t side = variant.threads / variant.shape.As<RowShape>().lanes;
  return grid.outer * CeilDiv(grid.inner, side * variant.vector);
}

// Several blocks a row pay where there are too few rows to give every multiprocessor one.
bool ClusterPays(const Grid& grid, const Gpu& gpu) {
  return grid.columns > kShortForCluster && grid.rows() < kClusterRows * gpu.multiprocessors;
}

// Blocks that go on to the next launch pay where even clusters leave most of the GPU idle.
bool SplitPays(const Grid& grid, const Gpu& gpu) {
  const std::uint64_t blocks = grid.rows() * std::min(gpu.largest_cluster, kBlocksOfLoop);
  return grid.columns > kShortForCluster && blocks < gpu.multiprocessors;
}

// Blocks that each have some of a strided row's columns pay where there are fewer tiles than multiprocessors, and rows
// are long for how often they are read.
bool SplitStridedPays(const RowProgram& program, const Variant& variant, const Grid& grid, const Gpu& gpu) {
  const std::uint64_t reads = program.stages.size() + (program.Stored(false).empty() ? 0 : 1);
  return grid.columns * reads >= kSplitStridedColumns && StridedTiles(variant, grid) < gpu.multiprocessors;
}

bool Fits(const RowProgram& program, const Variant& variant, const Grid& grid, const Gpu& gpu, bool fits32) {
  const RowShape& shape = variant.shape.As<RowShape>();
  if (shape.launch > 0) return false;  // the first launch of a variant is chosen
  if (variant.index == 32 && !fits32) return false;
  if (variant.cluster > gpu.largest_cluster) return false;
  switch (shape.layout) {
    case Layout::kHeld:
    case Layout::kRagged:
    case Layout::kPiped:
    case Layout::kRing:
      return variant.shared <= gpu.shared && HeldFits(program, variant, grid);
    case Layout::kLooped:
      return LoopedFits(program, variant, grid) && (variant.cluster == 1 || ClusterPays(grid, gpu));
    case Layout::kSplit:
      return LoopedFits(program, variant, grid) && SplitPays(grid, gpu);
    case Layout::kSplitStrided:
      return StridedFits(program, variant, grid) && SplitStridedPays(program, variant, grid, gpu);
    default:
      return StridedFits(program, variant, grid);
  }
}

}  // namespace

bool RowVariantFits(const RowProgram& program, const Variant& variant, const Grid& grid, const Gpu& gpu) {
  return Fits(program, variant, grid, gpu, Fits32(grid.domain, program.leaves()));
}

std::size_t ChooseRowVariant(const RowProgram& program, const std::vector<Variant>& variants, const Grid& grid,
                             const Gpu& gpu) {
  const std::size_t leaves = program.leaves();
  for (std::size_t k = 0; k < leaves; ++k) {
    if (grid.domain.access[k].runs > static_cast<std::size_t>(kMaxTerms)) return variants.size();
  }
  const bool fits32 = Fits32(grid.domain, leaves);
  std::size_t k = 0;
  while (k < variants.size() && !Fits(program, variants[k], grid, gpu, fits32)) ++k;
  return k;
}

void FillRowParams(const RowProgram& program, const Variant& variant, const Grid& grid, unsigned char* block) {
  const std::size_t outputs = program.outputs.size();
  const unsigned long long sizes[] = {grid.rows(), grid.columns, grid.inner};
  std::memcpy(block, sizes, sizeof(sizes));
  std::memcpy(block + kRowOutputsAt, static_cast<const void*>(grid.domain.output), outputs * sizeof(void*));
  const std::size_t leaves = program.leaves();
  std::memcpy(block + RowDataAt(outputs), static_cast<const void*>(grid.domain.input), leaves * sizeof(void*));
  FillInputs(program.Leaves(), variant, grid.domain, block + RowInputsAt(leaves, outputs));
}

Cut CutRows(const Variant& variant, const Grid& grid, const Gpu& gpu) {
  const RowShape& shape = variant.shape.As<RowShape>();
  // Columns: an element a lane where vectors lie across rows, else a vector a thread.
  const std::uint64_t wanted = kBlocksOfSplit * gpu.multiprocessors;
  if (shape.layout == Layout::kSplitStrided) {
    return CutColumns(grid.columns, StridedTiles(variant, grid), shape.lanes, wanted);
  }
  const std::uint64_t step = std::uint64_t{variant.threads} * variant.vector;
  return CutColumns(grid.columns, grid.rows(), step, wanted);
}

Cut CutColumns(std::uint64_t columns, std::uint64_t tiles, std::uint64_t step, std::uint64_t wanted) {
  const std::uint64_t max_parts = std::clamp<std::uint64_t>(wanted / tiles, 1, kMaxParts);
  const std::uint64_t length = RoundUp(CeilDiv(columns, max_parts), step);
  const std::uint64_t parts = CeilDiv(columns, length);
  return {parts, length, tiles * parts};
}

std::size_t ScratchBytes(const RowProgram& program, const Grid& grid, const Cut& cut) {
  std::size_t values = 0;
  for (const Stage& stage : program.stages) values += stage.reductions.size();
  return values * sizeof(std::uint64_t) * grid.rows() * cut.parts;
}

unsigned RowGridSize(const Variant& variant, const Grid& grid, unsigned resident) {
  const RowShape& shape = variant.shape.As<RowShape>();
  std::uint64_t blocks = 0;
  switch (shape.layout) {
    case Layout::kPiped:
    case Layout::kRing: {
      const std::uint64_t turns = CeilDiv(grid.rows(), resident);  // rows of one cluster; all get nearly as many
      blocks = CeilDiv(grid.rows(), turns) * variant.cluster;
      break;
    }
    case Layout::kHeld:
    case Layout::kRagged: {
      const std::uint64_t rows = std::max(1U, variant.threads * variant.cluster / shape.lanes);
      blocks = CeilDiv(grid.rows(), rows) * variant.cluster;
      break;
    }
    case Layout::kLooped:
      blocks = grid.rows() * variant.cluster;
      break;
    default:
      blocks = StridedTiles(variant, grid);
  }
  if (blocks > kMaxGrid) throw Error(std::to_string(grid.rows()) + " rows are too many for one launch");
  return static_cast<unsigned>(blocks);
}

}  // namespace onnxopt::cuda
