#include "cpu/rowwise.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cpu/blocks/peephole.h"
#include "cpu/first_failure.h"
#include "cpu/pointwise.h"
#include "cpu/reduce.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kBlock = costs::cpu::kRowBlock;
constexpr std::uint64_t kPart = costs::cpu::kPartBlocks * kBlock;
using costs::cpu::kMaxTasks;
using costs::cpu::kMinColumnsOfPart;
using costs::cpu::kSerialNanoseconds;
using costs::cpu::kTaskNanoseconds;

// A piece ready to run over one grid: slots become inputs of a pointwise domain.
class Runner {
 public:
  // over_rows: the domain has one element a row. slots: where the grid's row values lie, from its first row on.
  Runner(const CpuPiece& piece, const Grid& grid, bool over_rows, const RowProgram& rows, unsigned char* const* slots)
      : piece_(piece) {
    domain_.count = over_rows ? grid.rows() : grid.domain.count;
    domain_.indexed = grid.domain.indexed;
    domain_.conditional = grid.domain.conditional;
    std::copy_n(grid.domain.condition, rows.conditions(), domain_.condition);
    const Shape row_shape{3, {Int(grid.outer), 1, Int(grid.inner)}};
    const Shape shape{3, {Int(grid.outer), over_rows ? 1 : Int(grid.columns), Int(grid.inner)}};
    for (std::size_t k = 0; k < piece.reads.size(); ++k) {
      const std::size_t slot = piece.reads[k];
      if (slot < rows.leaves()) {
        domain_.input[k] = grid.domain.input[slot];
        domain_.access[k] = over_rows ? grid.row_access[slot] : grid.domain.access[slot];
      } else {
        domain_.input[k] = slots[slot];
        domain_.access[k].runs = 0;
        if (slot == rows.leaves() + kPositionSlot) {
          Collapse(Shape{3, {1, Int(grid.columns), 1}}, shape, &domain_.access[k]);
        }
        if (slot >= rows.leaves() + kGivenSlots) Collapse(row_shape, shape, &domain_.access[k]);
      }
    }
    for (std::size_t k = 0; k < piece.program.outputs.size(); ++k) domain_.output[k] = slots[0];  // all are written
    tiling_ = Tile(piece.program, domain_);
    plan_ = piece.plans.For(tiling_.key);
  }

  // Computes elements first .. last - 1; output k begins at outputs[k] with element 0 of the domain, which need not be
  // memory of ours where it is not among them.
  void Run(std::uint64_t first, std::uint64_t last, unsigned char* const* outputs) const {
    if (first == last) return;
    Domain domain = domain_;
    for (std::size_t k = 0; k < piece_.program.outputs.size(); ++k) domain.output[k] = outputs[k];
    RunBlocks(piece_.program, *plan_, tiling_, domain, first, last);
  }

 private:
  static std::int64_t Int(std::uint64_t value) { return static_cast<std::int64_t>(value); }

  const CpuPiece& piece_;
  Domain domain_;
  Tiling tiling_;
  std::shared_ptr<const Plan> plan_;
};

// `data` moved so that what is at index `first` of the result is its beginning. Never dereferenced below that.
unsigned char* Before(unsigned char* data, std::uint64_t first, std::size_t size) {
  return reinterpret_cast<unsigned char*>(reinterpret_cast<std::uintptr_t>(data) - first * size);
}

}  // namespace

CpuPiece::CpuPiece(const Piece& piece) : reads(piece.reads), program(Peephole(piece.program)), plans(program) {}

namespace {

// One call's work, cut into ranges of the outer dim.
class RowJob {
 public:
  struct Pieces {
    const std::vector<std::unique_ptr<const CpuPiece>>& element;
    const std::vector<std::unique_ptr<const CpuPiece>>& row;
    const CpuPiece* output;
    const CpuPiece* row_output;
    bool positions;  // whether any of them reads the position of elements
  };

  RowJob(const RowProgram& program, const Pieces& pieces, const Grid& grid, std::uint64_t task)
      : program_(program),
        grid_(grid),
        task_(task),
        dtypes_(program.Slots()),
        memory_(dtypes_.size()),
        slots_(dtypes_.size()) {
    length_ = static_cast<float>(grid.columns);
    wide_length_ = static_cast<double>(grid.columns);
    const std::size_t leaves = program.leaves();
    slots_[leaves] = reinterpret_cast<unsigned char*>(&length_);
    slots_[leaves + 1] = reinterpret_cast<unsigned char*>(&wide_length_);
    if (pieces.positions) positions_.resize(grid.columns);
    std::iota(positions_.begin(), positions_.end(), std::int64_t{0});
    slots_[leaves + kPositionSlot] = reinterpret_cast<unsigned char*>(positions_.data());
    for (std::size_t k = leaves + kGivenSlots; k < dtypes_.size(); ++k) {
      memory_[k].resize(grid.rows() * Size(dtypes_[k]));
      slots_[k] = memory_[k].data();
    }
    slots_[0] = reinterpret_cast<unsigned char*>(&length_);  // not null, as outputs are told apart by that
    if (grid.columns > 0) {
      for (const auto& piece : pieces.element) element_.emplace_back(*piece, grid, false, program, slots_.data());
      if (pieces.output != nullptr) output_.emplace(*pieces.output, grid, false, program, slots_.data());
    }
    for (const auto& piece : pieces.row) {
      row_.emplace_back();
      if (piece != nullptr) row_.back().emplace(*piece, grid, true, program, slots_.data());
    }
    if (pieces.row_output != nullptr) row_output_.emplace(*pieces.row_output, grid, true, program, slots_.data());
  }

  std::uint64_t tasks() const { return CeilDiv(grid_.outer, task_); }

  void Run(std::uint64_t t) noexcept {
    Guard([&] { RunOuter(t * task_, std::min(grid_.outer, (t + 1) * task_)); });
  }

  // Whether there are so few rows that threads share them: the outer dim alone makes fewer than `wanted` tasks.
  bool IsLong(std::uint64_t wanted) const { return grid_.outer < wanted && grid_.columns >= 2 * PartColumns(); }

  // Runs with every row cut into parts, which `parallel` runs side by side: parallel(count, body) calls body(k) for
  // every k below count. What parts are does not depend on the threads, and neither do results.
  template <typename Parallel>
  void RunLong(Parallel&& parallel) {
    const std::uint64_t parts = CeilDiv(grid_.columns, PartColumns());
    const std::uint64_t count = grid_.outer * parts;
    std::size_t slot = program_.leaves() + kGivenSlots;
    for (std::size_t s = 0; s < program_.stages.size(); ++s) {
      const Stage& stage = program_.stages[s];
      std::vector<std::vector<unsigned char>> partial(stage.reductions.size());
      for (std::size_t k = 0; k < partial.size(); ++k) {
        partial[k].resize(count * grid_.inner * Size(dtypes_[slot + k]));
        FillIdentity(stage.reductions[k], dtypes_[slot + k], partial[k].data(), count * grid_.inner);
      }
      parallel(count, [&](std::uint64_t t) {
        unsigned char* to[kMaxOutputs] = {};
        for (std::size_t k = 0; k < partial.size(); ++k) {
          to[k] = partial[k].data() + t * grid_.inner * Size(dtypes_[slot + k]);
        }
        ReduceRange(s, slot, PartBegin(t, parts), PartBegin(t + 1, parts), to);
      });
      for (std::size_t k = 0; k < partial.size(); ++k) Gather(stage.reductions[k], slot + k, partial[k].data(), parts);
      slot += stage.reductions.size();
      if (!row_[s]) continue;
      row_[s]->Run(0, grid_.rows(), slots_.data() + slot);
      slot += stage.row->program.outputs.size();
    }
    parallel(count, [&](std::uint64_t t) { RunOutput(output_, false, PartBegin(t, parts), PartBegin(t + 1, parts)); });
    RunOutput(row_output_, true, 0, grid_.rows());
  }

  template <typename Body>
  void Guard(Body&& body) noexcept {
    failure_.Guard(body);
  }

  void Finish() const { failure_.Rethrow(); }

 private:
  void RunOuter(std::uint64_t begin, std::uint64_t end) {
    // As many rows at once as keep what is read again in cache, one at least.
    const std::uint64_t size = std::max<std::uint64_t>(grid_.columns * grid_.inner, 1);
    const std::uint64_t step = std::max<std::uint64_t>(kBlock / size, 1);
    for (std::uint64_t o = begin; o < end; o += step) RunRows(o, std::min(end, o + step));
  }

  void RunRows(std::uint64_t o, std::uint64_t end) {
    std::size_t slot = program_.leaves() + kGivenSlots;
    const std::uint64_t first_row = o * grid_.inner;
    const std::uint64_t last_row = end * grid_.inner;
    for (std::size_t s = 0; s < program_.stages.size(); ++s) {
      const Stage& stage = program_.stages[s];
      Reduce(s, slot, o, end);
      slot += stage.reductions.size();
      if (!row_[s]) continue;
      row_[s]->Run(first_row, last_row, slots_.data() + slot);
      slot += stage.row->program.outputs.size();
    }
    RunOutput(output_, false, o * grid_.columns * grid_.inner, end * grid_.columns * grid_.inner);
    RunOutput(row_output_, true, first_row, last_row);
  }

  void RunOutput(const std::optional<Runner>& runner, bool rows, std::uint64_t first, std::uint64_t last) const {
    if (!runner) return;
    unsigned char* outputs[kMaxOutputs] = {};
    std::size_t count = 0;
    for (const std::size_t k : program_.Stored(rows)) {
      outputs[count++] = static_cast<unsigned char*>(grid_.domain.output[k]);
    }
    runner->Run(first, last, outputs);
  }

  std::uint64_t PartColumns() const {
    return std::max(kPart / std::max<std::uint64_t>(grid_.inner, 1), kMinColumnsOfPart);
  }

  // The first element of part t, of so many a row.
  std::uint64_t PartBegin(std::uint64_t t, std::uint64_t parts) const {
    const std::uint64_t column = std::min(t % parts * PartColumns(), grid_.columns);
    return (t / parts * grid_.columns + column) * grid_.inner;
  }

  // Merges the partial results of all parts into their rows' slots.
  void Gather(Reduction reduction, std::size_t slot, const unsigned char* from, std::uint64_t parts) {
    const Dtype dtype = dtypes_[slot];
    FillIdentity(reduction, dtype, At(slot, 0), grid_.rows());
    for (std::uint64_t t = 0; t < grid_.outer * parts; ++t) {
      ReduceAcross(reduction, dtype, At(slot, t / parts * grid_.inner), from + t * grid_.inner * Size(dtype),
                   grid_.inner);
    }
  }

  void Reduce(std::size_t s, std::size_t slot, std::uint64_t o, std::uint64_t end) {
    const Stage& stage = program_.stages[s];
    unsigned char* to[kMaxOutputs] = {};
    for (std::size_t k = 0; k < stage.reductions.size(); ++k) {
      to[k] = At(slot + k, o * grid_.inner);
      FillIdentity(stage.reductions[k], dtypes_[slot + k], to[k], (end - o) * grid_.inner);
    }
    if (grid_.columns > 0) {
      ReduceRange(s, slot, o * grid_.columns * grid_.inner, end * grid_.columns * grid_.inner, to);
    }
  }

  // Reduces elements first .. last - 1 into to[k], which begins with the first row that has any of them.
  void ReduceRange(std::size_t s, std::size_t slot, std::uint64_t first, std::uint64_t last, unsigned char* const* to) {
    const Stage& stage = program_.stages[s];
    const std::size_t count = stage.reductions.size();
    thread_local std::vector<unsigned char> scratch;
    std::size_t offset[kMaxOutputs];
    std::size_t bytes = 0;
    for (std::size_t k = 0; k < count; ++k) {
      offset[k] = bytes;
      bytes += (kBlock * Size(dtypes_[slot + k]) + 63) / 64 * 64;
    }
    if (scratch.size() < bytes) scratch.resize(bytes);
    const std::uint64_t row = first / (grid_.columns * grid_.inner) * grid_.inner;
    for (std::uint64_t i = first; i < last; i += kBlock) {
      const std::uint64_t until = std::min(last, i + kBlock);
      unsigned char* outputs[kMaxOutputs] = {};
      for (std::size_t k = 0; k < count; ++k) {
        outputs[k] = Before(scratch.data() + offset[k], i, Size(dtypes_[slot + k]));
      }
      element_[s].Run(i, until, outputs);
      for (std::size_t k = 0; k < count; ++k) {
        const Dtype dtype = dtypes_[slot + k];
        Merge(stage.reductions[k], dtype, Before(to[k], row, Size(dtype)), scratch.data() + offset[k], i, until);
      }
    }
  }

  // Merges the values of elements first .. last - 1 into those of their rows, of which row 0 is at `to`.
  void Merge(Reduction reduction, Dtype dtype, unsigned char* to, const unsigned char* from, std::uint64_t first,
             std::uint64_t last) const {
    const std::uint64_t run = grid_.inner == 1 ? grid_.columns : grid_.inner;  // neighbours that are treated alike
    for (std::uint64_t i = first; i < last;) {
      const std::uint64_t n = std::min(last - i, run - i % run);
      const std::uint64_t row = i / (grid_.columns * grid_.inner) * grid_.inner + i % grid_.inner;
      if (grid_.inner == 1) {
        ReduceRun(reduction, dtype, to + row * Size(dtype), from, n);
      } else {
        ReduceAcross(reduction, dtype, to + row * Size(dtype), from, n);
      }
      from += n * Size(dtype);
      i += n;
    }
  }

  unsigned char* At(std::size_t slot, std::uint64_t row) { return slots_[slot] + row * Size(dtypes_[slot]); }

  const RowProgram& program_;
  const Grid& grid_;
  const std::uint64_t task_;  // of the outer dim
  const std::vector<Dtype> dtypes_;
  std::vector<std::vector<unsigned char>> memory_;
  std::vector<unsigned char*> slots_;
  float length_;
  double wide_length_;
  std::vector<std::int64_t> positions_;
  std::vector<Runner> element_;
  std::vector<std::optional<Runner>> row_;
  std::optional<Runner> output_;
  std::optional<Runner> row_output_;
  FirstFailure failure_;
};

std::unique_ptr<const CpuPiece> Make(const Piece& piece) { return std::make_unique<const CpuPiece>(piece); }

}  // namespace

RowwiseCpuKernel::RowwiseCpuKernel(const Kernel& kernel)
    : RowKernel(kernel, kernel.meaning.As<RowProgram>()), cost_(0) {
  for (const Stage& stage : rows().stages) {
    element_.push_back(Make(stage.element));
    row_.push_back(stage.row ? Make(*stage.row) : nullptr);
    cost_ += NanosecondsPerElement(element_.back()->program);
  }
  if (rows().output) {
    output_ = Make(*rows().output);
    cost_ += NanosecondsPerElement(output_->program);
  }
  if (rows().row_output) row_output_ = Make(*rows().row_output);
  const std::size_t position = rows().leaves() + kPositionSlot;
  const auto reads = [&](const auto& piece) {
    return piece != nullptr && std::count(piece->reads.begin(), piece->reads.end(), position) > 0;
  };
  positions_ = reads(output_) || std::any_of(element_.begin(), element_.end(), reads);
}

void RowwiseCpuKernel::Run(const Grid& grid, OrtKernelContext* context) const {
  const double total = static_cast<double>(grid.domain.count) * cost_;
  std::uint64_t wanted = 1;
  if (total > kSerialNanoseconds) {
    wanted = std::max<std::uint64_t>(std::min(kMaxTasks, static_cast<std::uint64_t>(total / kTaskNanoseconds)), 1);
  }
  const RowJob::Pieces pieces{element_, row_, output_.get(), row_output_.get(), positions_};
  RowJob job(rows(), pieces, grid, CeilDiv(grid.outer, wanted));
  if (job.IsLong(wanted)) {
    job.RunLong([&](std::uint64_t count, auto&& body) {
      auto guarded = [&](std::size_t t) { job.Guard([&] { body(t); }); };
      using Guarded = decltype(guarded);
      const auto run = [](void* data, std::size_t t) { (*static_cast<Guarded*>(data))(t); };
      Check(Ort().KernelContext_ParallelFor(context, run, count, 0, &guarded));
    });
  } else if (job.tasks() == 1) {
    job.Run(0);
  } else {
    const auto run = [](void* data, std::size_t t) { static_cast<RowJob*>(data)->Run(t); };
    Check(Ort().KernelContext_ParallelFor(context, run, job.tasks(), 0, &job));
  }
  job.Finish();
}

}  // namespace onnxopt
