#include "cuda/programs/pointwise_variant.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "cuda/programs/index_width.h"
#include "device/access_modes.h"
#include "kernel_file/programs/pointwise.h"
#include "program/divisor.h"
#include "program/programs/pointwise_params.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMaxGrid = 0x7fffffff;
constexpr std::size_t kWidestAccess = 16;  // bytes that a GPU thread loads or stores at once
constexpr std::size_t kWord = 4;           // bytes of a bank of shared memory

bool IsMultiple(std::int64_t number, unsigned vector) { return number % static_cast<std::int64_t>(vector) == 0; }

// A run of neighbours, in which vectors lie whole and aligned.
bool Neighbours(const Access& access, const void* data, Dtype dtype, unsigned vector) {
  if (access.runs == 0 || access.run[0].div != 1 || access.run[0].stride != 1) return false;
  if (access.run[0].mod % vector != 0 || !Aligned(data, dtype, vector)) return false;
  const auto fits = [&](const Run& run) { return IsMultiple(run.stride, vector); };
  return IsMultiple(access.step, vector) && std::all_of(access.run + 1, access.run + access.runs, fits);
}

// Vectors in which every element is the same one.
bool Cells(const Access& access, unsigned vector) {
  return std::all_of(access.run, access.run + access.runs, [&](const Run& run) { return run.div % vector == 0; });
}

// Whether a vector meets at most one end of a run of neighbours, or of a cell.
bool Long(const Access& access, unsigned vector) {
  if (access.runs == 0) return false;
  if (access.terms > 0) return access.stretch >= vector;
  return (access.run[0].div == 1 ? access.run[0].mod : access.run[0].div) >= vector;
}

// The run along which the columns of a tile lie, nullptr where none does.
const Run* Columns(const Access& access) {
  if (access.runs == 0 || access.run[0].div != 1 || access.run[0].stride == 1) return nullptr;
  const Run* end = access.run + access.runs;
  const Run* match = std::find_if(access.run + 1, end, [](const Run& run) { return run.stride == 1; });
  return match == end ? nullptr : match;
}

bool SameColumns(const Run* a, const Run* b) {
  return a != nullptr && b != nullptr && a->div == b->div && a->mod == b->mod;
}

// The columns of a tiled variant, from its first input that lies along them.
const Run* TileColumns(const Variant& variant, const Domain& domain) {
  return Columns(domain.access[variant.modes.find_first_of(kModesAlong)]);
}

bool FitsTile(const Variant& variant, const Domain& domain) {
  const Tile& tile = variant.shape.As<Tile>();
  if (tile.rows == 0) return true;
  const Run* columns = TileColumns(variant, domain);
  if (columns == nullptr) return false;
  if (tile.whole) return columns->div == tile.rows && columns->div * columns->mod % variant.vector == 0;
  // Below that, tiles are mostly empty; where the sides were known, the tile was made for them.
  const std::uint64_t shortest = std::min<std::uint64_t>(8, tile.columns);
  const bool whole_vectors = tile.slides || columns->div % variant.vector == 0;
  return whole_vectors && columns->div >= 8 && columns->mod >= shortest;
}

// Neighbours that take turns among as many runs as the innermost dim has elements, each of them read in vectors.
bool Interleaved(const Access& access, const void* data, Dtype dtype, unsigned vector) {
  if (access.runs < 2 || access.run[0].div != 1 || vector % access.run[0].mod != 0) return false;
  const Run& along = access.run[1];
  const auto part = static_cast<unsigned>(vector / access.run[0].mod);
  if (along.stride != 1 || along.div != access.run[0].mod || along.mod % part != 0) return false;
  const auto fits = [&](const Run& run) { return &run == &along || IsMultiple(run.stride, part); };
  return Aligned(data, dtype, part) && IsMultiple(access.step, part) &&
         std::all_of(access.run, access.run + access.runs, fits);
}

bool Holds(char mode, const Access& access, const void* data, Dtype dtype, unsigned vector, std::uint64_t count) {
  const bool one = access.runs == 1 && access.run[0].stride == 1;
  const bool inner = access.runs > 0 && access.run[0].div == 1;
  switch (mode) {
    case access_mode::kFlat:
      return access.Flat(count) && Aligned(data, dtype, vector);
    case access_mode::kScalar:
      return access.runs == 0;
    case access_mode::kRun:
      return one && Neighbours(access, data, dtype, vector);
    case access_mode::kRun2:
      return access.runs <= 2 && Neighbours(access, data, dtype, vector);
    case access_mode::kRunAny:
      return Neighbours(access, data, dtype, vector);
    case access_mode::kCell:
      return (access.runs == 0 || (one && !inner)) && Cells(access, vector);
    case access_mode::kCell2:
      return access.runs <= 2 && Cells(access, vector);
    case access_mode::kCellAny:
      return Cells(access, vector);
    case access_mode::kInterleaved:
      return Interleaved(access, data, dtype, vector);
    case access_mode::kSplitRun:
      return one && inner && Long(access, vector);
    case access_mode::kSplitCell:
      return one && !inner && Long(access, vector);
    case access_mode::kSplit2:
      return access.runs <= 2 && Long(access, vector);
    case access_mode::kSplitAny:
      return Long(access, vector);
    case access_mode::kColumn:
    case access_mode::kColumn8:
    case access_mode::kColumn16:
    case access_mode::kColumnShifted:
      return Columns(access) != nullptr;
    default:
      return access.runs <= static_cast<std::size_t>(kMaxTerms);
  }
}

// Whether a condition is the same for every element of a vector.
bool Uniform(const Condition& condition, unsigned vector) {
  const Access& form = condition.form;
  if (form.runs == 0 || form.run[0].div != 1) return Cells(form, vector);
  const std::int64_t cell = form.run[0].stride * static_cast<std::int64_t>(vector);
  if (cell <= 0 || form.run[0].mod % vector != 0) return false;
  if ((condition.low - condition.offset) % cell != 0 || (condition.high - condition.offset) % cell != 0) return false;
  return std::all_of(form.run + 1, form.run + form.runs, [&](const Run& run) { return run.stride % cell == 0; });
}

// By how much a condition's form grows along the columns of a tile, 0 where it does not depend on them; nothing where
// it has digits of theirs and of others in one.
std::optional<std::int64_t> StepAlong(const Run& columns, const Access& form) {
  std::int64_t step = 0;
  for (std::size_t k = 0; k < form.runs; ++k) {
    const Run& run = form.run[k];
    const bool apart = run.div >= columns.div * columns.mod || run.div * run.mod <= columns.div;
    if (apart) continue;
    if (run.div != columns.div || run.mod != columns.mod) return std::nullopt;
    step = run.stride;
  }
  return step;
}

// Whether a condition is the same for every element of a vector along the columns of a tile, which begins at a multiple
// of its size.
bool UniformAlong(const Run& columns, const Condition& condition, unsigned vector) {
  const Access& form = condition.form;
  const std::optional<std::int64_t> step = StepAlong(columns, form);
  if (!step) return false;
  if (*step == 0) return true;
  const std::int64_t cell = *step * static_cast<std::int64_t>(vector);
  if (cell < 0 || (condition.low - condition.offset) % cell != 0 || (condition.high - condition.offset) % cell != 0) {
    return false;
  }
  return std::all_of(form.run, form.run + form.runs,
                     [&](const Run& run) { return run.div == columns.div || run.stride % cell == 0; });
}

// Whether a condition that holds anywhere in such a vector, wherever that begins, holds at one of its ends.
bool LongAlong(const Run& columns, const Condition& condition, unsigned vector) {
  const std::optional<std::int64_t> step = StepAlong(columns, condition.form);
  return step && condition.high - condition.low >= std::abs(*step) * static_cast<std::int64_t>(vector);
}

// Whether access `k` can be read along its columns in aligned vectors that begin anywhere: a reader must know by turns
// where elements of less than a word lie in theirs.
bool FitsShiftedVectors(const Domain& domain, std::size_t k, Dtype dtype) {
  const Access& access = domain.access[k];
  const Run* columns = Columns(access);
  const auto words = static_cast<unsigned>(kWord / std::min(kWord, Size(dtype)));
  if (access.term[0].mod == 1) return false;  // the reader takes the first term for that of the rows
  const bool in_turns = columns == access.run + 1 ||
                        std::all_of(access.run, columns, [&](const Run& run) { return IsMultiple(run.stride, words); });
  bool fits = in_turns;
  for (std::size_t c = 0; c < kMaxConditions; ++c) {
    if ((access.guards >> c & 1U) == 0) continue;
    fits = fits && LongAlong(*columns, domain.condition[c], static_cast<unsigned>(kWidestAccess / Size(dtype)));
  }
  return fits;
}

// Whether access `k` can be read along its columns in vectors of so many bytes, each inside or outside of its guards.
// Where a tile has fewer columns than that, all columns of some rows must lie side by side.
bool FitsColumnVectors(const Variant& variant, const Domain& domain, std::size_t k, Dtype dtype, std::size_t bytes) {
  const Access& access = domain.access[k];
  const auto width = static_cast<unsigned>(bytes / Size(dtype));
  if (width <= 1) return true;
  const Run* columns = Columns(access);
  const std::uint64_t tile_columns = variant.shape.As<Tile>().columns;
  const bool strip = tile_columns < width;
  const Run& rows = access.run[0];
  if (strip) {
    const bool side_by_side = columns->mod == tile_columns && rows.stride == static_cast<std::int64_t>(columns->mod) &&
                              rows.mod * columns->mod % width == 0 && access.guards == 0;
    if (!side_by_side) return false;
  } else if (columns->mod % width != 0) {
    return false;
  }
  if (!Aligned(domain.input[k], dtype, width)) return false;
  const auto fits = [&](const Run& run) {
    return &run == columns || (strip && &run == &rows) || IsMultiple(run.stride, width);
  };
  bool whole = std::all_of(access.run, access.run + access.runs, fits);
  for (std::size_t c = 0; c < kMaxConditions; ++c) {
    if ((access.guards >> c & 1U) != 0) whole = whole && UniformAlong(*columns, domain.condition[c], width);
  }
  return whole;
}

bool Fits(const Program& program, const Variant& variant, const Domain& domain, bool fits32) {
  if (variant.index == 32 && !fits32) return false;
  if (!FitsTile(variant, domain)) return false;
  for (std::size_t k = 0; k < program.accesses(); ++k) {
    const Access& access = domain.access[k];
    const char mode = variant.modes[k];
    if (!Holds(mode, access, domain.input[k], program.leaf(k), variant.vector, domain.count)) return false;
    if (std::strchr(kModesAlong, mode) == nullptr) continue;
    if (!SameColumns(Columns(access), TileColumns(variant, domain))) return false;
    if (mode == access_mode::kColumnShifted && !FitsShiftedVectors(domain, k, program.leaf(k))) return false;
    const std::size_t bytes = mode == access_mode::kColumn16  ? kWidestAccess
                              : mode == access_mode::kColumn8 ? kWidestAccess / 2
                                                              : 0;
    if (!FitsColumnVectors(variant, domain, k, program.leaf(k), bytes)) return false;
  }
  for (std::size_t k = 0; k < program.conditions(); ++k) {
    if (variant.modes[program.accesses() + k] == access_mode::kUniform && !Uniform(domain.condition[k], variant.vector))
      return false;
  }
  // A general variant looks at its output pointers itself.
  if (variant.modes.find(access_mode::kAny) != std::string::npos) return true;
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    if (!Aligned(domain.output[k], program.outputs[k], variant.vector)) return false;
  }
  return true;
}

// What a general variant finds out about an access at run time.
unsigned Flags(const Access& access, const Domain& domain, const void* data, Dtype dtype, unsigned vector) {
  if (access.Flat(domain.count) && Aligned(data, dtype, vector)) return kFlat | kCell;
  if (Neighbours(access, data, dtype, vector)) return kCell | kInner;
  return Cells(access, vector) ? kCell : 0;
}

template <typename Index>
Divisor<Index> MakeDivisor(std::uint64_t d) {
  if constexpr (sizeof(Index) == sizeof(Index32)) {
    return MakeDivisor32(d);
  } else {
    return {d};
  }
}

// All of them, those of an index map at their places in kernels.json: a kernel that was made for more terms than there
// are at these shapes adds 0 for the others.
template <typename Index>
void FillTerms(const Access& access, Term<Index>* terms) {
  const Run* const runs = access.terms > 0 ? access.term : access.run;
  const std::size_t count = access.terms > 0 ? access.terms : access.runs;
  for (std::size_t t = 0; t < static_cast<std::size_t>(kMaxTerms); ++t) {
    const Run run = t < count ? runs[t] : Run{1, 1, 0};
    terms[t] = {MakeDivisor<Index>(run.div), MakeDivisor<Index>(run.mod), static_cast<Index>(run.stride)};
  }
  if (access.step == 0) return;
  terms[kMaxTerms - 1].mod.divisor = static_cast<Index>(access.size);
  terms[kMaxTerms - 1].stride = static_cast<Index>(access.step);
}

template <typename Index>
void FillInput(Dtype dtype, unsigned vector, const Domain& domain, std::size_t k, unsigned char* at) {
  const bool is_condition = domain.indexed && domain.input[k] == nullptr;
  const Access& access = is_condition ? domain.ConditionOf(k).form : domain.access[k];
  Input<Index> input{};
  input.data = domain.input[k];
  input.terms = static_cast<unsigned>(access.runs);
  if (is_condition) {
    input.flags = Uniform(domain.ConditionOf(k), vector) ? kCell : 0;
  } else {
    input.flags = Flags(access, domain, input.data, dtype, vector);
  }
  FillTerms(access, input.term);
  std::memcpy(at + k * sizeof(input), &input, sizeof(input));
}

template <typename Index>
void FillLeaves(const Program& program, const Variant& variant, const Domain& domain, unsigned char* at) {
  for (std::size_t k = 0; k < program.accesses(); ++k) {
    FillInput<Index>(program.leaf(k), variant.vector, domain, k, at);
  }
  at += program.accesses() * sizeof(Input<Index>);
  for (std::size_t k = 0; k < program.conditions(); ++k, at += sizeof(IndexRange<Index>)) {
    const Condition& condition = domain.condition[k];
    IndexRange<Index> range{};
    range.low = static_cast<Index>(condition.low - condition.offset);
    range.extent = static_cast<Index>(condition.high - condition.low);
    range.terms = static_cast<unsigned>(condition.form.runs);
    FillTerms(condition.form, range.term);
    std::memcpy(at, &range, sizeof(range));
  }
}

std::uint64_t TilesAlongRows(const Variant& variant, const Run& columns) {
  const Tile& tile = variant.shape.As<Tile>();
  return CeilDiv(columns.div + (tile.slides ? variant.vector - 1 : 0), tile.rows);
}

}  // namespace

bool Aligned(const void* data, Dtype dtype, unsigned vector) {
  const std::size_t bytes = std::min(Size(dtype) * vector, kWidestAccess);
  return IsAligned(data, bytes);
}

void FillInputs(const std::vector<Dtype>& dtypes, const Variant& variant, const Domain& domain, unsigned char* at) {
  for (std::size_t k = 0; k < dtypes.size(); ++k) {
    if (variant.index == 32) {
      FillInput<Index32>(dtypes[k], variant.vector, domain, k, at);
    } else {
      FillInput<Index64>(dtypes[k], variant.vector, domain, k, at);
    }
  }
}

bool VariantFits(const Program& program, const Variant& variant, const Domain& domain) {
  return Fits(program, variant, domain, Fits32(domain, program.leaves()));
}

std::size_t ChooseVariant(const Program& program, const std::vector<Variant>& variants, const Domain& domain) {
  const bool fits32 = Fits32(domain, program.leaves());
  std::size_t k = 0;
  while (k < variants.size() && !Fits(program, variants[k], domain, fits32)) ++k;
  return k;
}

void FillParams(const Program& program, const Variant& variant, const Domain& domain, unsigned char* block) {
  const Tile& tile = variant.shape.As<Tile>();
  if (tile.rows > 0) {
    const Run& columns = *TileColumns(variant, domain);
    const Tiles<Index32> tiles = {static_cast<Index32>(columns.div), static_cast<Index32>(columns.mod),
                                  MakeDivisor<Index32>(TilesAlongRows(variant, columns)),
                                  MakeDivisor<Index32>(CeilDiv(columns.mod, tile.columns))};
    std::memcpy(block, &tiles, sizeof(tiles));
    block += sizeof(tiles);
  }
  const std::size_t inputs = program.accesses();
  const std::size_t outputs = program.outputs.size();
  const unsigned long long count = domain.count;
  std::memcpy(block, &count, sizeof(count));
  std::memcpy(block + kOutputsAt, static_cast<const void*>(domain.output), outputs * sizeof(void*));
  std::memcpy(block + DataAt(outputs), static_cast<const void*>(domain.input), inputs * sizeof(void*));
  unsigned char* leaves = block + InputsAt(inputs, outputs);
  if (variant.index == 32) {
    FillLeaves<Index32>(program, variant, domain, leaves);
  } else {
    FillLeaves<Index64>(program, variant, domain, leaves);
  }
}

unsigned GridSize(const Variant& variant, const Domain& domain) {
  const Tile& tile = variant.shape.As<Tile>();
  std::uint64_t blocks = CeilDiv(domain.count, std::uint64_t{variant.threads} * variant.vector * variant.unroll);
  if (tile.rows > 0) {
    const Run& columns = *TileColumns(variant, domain);
    blocks = TilesAlongRows(variant, columns) * CeilDiv(columns.mod, tile.columns) *
             (domain.count / (columns.div * columns.mod));
  }
  if (blocks > kMaxGrid) {
    throw Error("a tensor of " + std::to_string(domain.count) + " elements is too large for one launch");
  }
  return static_cast<unsigned>(blocks);
}

}  // namespace onnxopt::cuda
