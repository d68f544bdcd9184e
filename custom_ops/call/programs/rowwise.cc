#include "call/programs/rowwise.h"

#include <algorithm>

#include "call/tensors.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kUsualWork = std::uint64_t{1} << 26U;   // elements of a domain, whatever it is of
constexpr std::uint64_t kMaxRepeats = std::uint64_t{1} << 16U;  // of an element that is read or written
constexpr const char* kDamaged = "; kernels.json is damaged or of another model";

// `shape` with `count` dims of 1 appended.
Shape WithTrailing(const Shape& shape, std::size_t count) {
  Shape longer = shape;
  if (shape.rank + count > kMaxRank) throw Error("an input of rank " + std::to_string(shape.rank) + " is too high");
  std::fill_n(longer.dims + shape.rank, count, 1);
  longer.rank += count;
  return longer;
}

// ONNX's Reshape: 0 takes over the dim, -1 is what is left.
Shape Reshaped(const Shape& shape, const std::vector<std::int64_t>& target) {
  Shape result{};
  result.rank = target.size();
  std::size_t open = target.size();
  for (std::size_t k = 0; k < target.size(); ++k) {
    if (target[k] < 0) {
      open = k;
      result.dims[k] = 1;
      continue;
    }
    if (target[k] == 0 && k >= shape.rank) throw Error("shape " + ToString(shape) + " has no dim to take over");
    result.dims[k] = target[k] == 0 ? shape.dims[k] : target[k];
  }
  if (open < target.size()) {
    const std::uint64_t product = result.count();
    if (product == 0 || shape.count() % product != 0) throw Error("shape " + ToString(shape) + " cannot be reshaped");
    result.dims[open] = static_cast<std::int64_t>(shape.count() / product);
  }
  if (result.count() != shape.count()) throw Error(ToString(shape) + " cannot be reshaped to " + ToString(result));
  return result;
}

// The shapes of both views.
void ViewShapes(const RowProgram& program, const Shape* inputs, Shape* views) {
  const std::size_t base = program.base();
  Shape shape{};
  for (std::size_t k = 0; k < program.inputs.size(); ++k) {
    const Operand& operand = program.operands[k];
    if (operand.view != base) continue;
    if (BroadcastInto(WithTrailing(inputs[k], operand.trailing), &shape)) continue;
    throw Error("input " + std::to_string(k) + " of shape " + ToString(inputs[k]) + " does not broadcast");
  }
  PadRank(program.views[base].rank, &shape);
  if (shape.rank != program.views[base].rank) {
    throw Error("shape " + ToString(shape) + " where rank " + std::to_string(program.views[base].rank) +
                " was expected; model and library belong to different artifacts");
  }
  views[base] = shape;
  if (program.views.size() > 1) views[1 - base] = Reshaped(shape, program.views[1 - base].target);
}

Shape OutputShape(const RowProgram& program, const Result& result, const Shape* views) {
  if (result.form == Form::kElement) return views[result.view];
  Shape shape = views[0];
  std::fill(shape.dims + program.first, shape.dims + program.last, 1);
  if (result.form == Form::kRow) return shape;
  std::copy(shape.dims + program.last, shape.dims + shape.rank, shape.dims + program.first);
  shape.rank -= program.last - program.first;
  return shape;
}

std::uint64_t Count(const Shape& shape, std::size_t first, std::size_t last) {
  return static_cast<std::uint64_t>(Elements(shape.dims + first, last - first));
}

// How an input lies over the domain and over the rows. One that does not broadcast cannot matter: either nothing is
// computed from it, or the domain is empty.
void Lay(const RowProgram& program, const Shape& input, const Operand& operand, const Shape& view, const Shape& rows,
         Access* access, Access* row_access) {
  const Shape shape = WithTrailing(input, operand.trailing);
  access->runs = 0;
  row_access->runs = 0;
  if (view.count() > 0 && !Collapse(shape, view, access)) {
    throw Error("shape " + ToString(input) + " does not broadcast to " + ToString(view));
  }
  if (!operand.row) return;
  if (operand.view == 0 ? !Collapse(shape, rows, row_access) : input.count() == 0) {
    throw Error("shape " + ToString(input) + " does not have one element a row of " + std::to_string(program.first));
  }
}

// How an access that is the same for a whole row lies over the rows.
Access OverRows(const Grid& grid, const Access& access, std::size_t k) {
  Access rows = access;
  bool same = access.guards == 0;
  for (std::size_t r = 0; r < rows.runs; ++r) {
    Run& run = rows.run[r];
    if (run.div * run.mod <= grid.inner) continue;
    same = same && run.div >= grid.columns * grid.inner && run.div % grid.columns == 0;
    run.div /= grid.columns;
  }
  if (!same) throw Error("access " + std::to_string(k) + " is not the same for a whole row" + kDamaged);
  return rows;
}

// The domain of a call is tied to what it reads and writes but for what is repeated without being written: more than
// this would keep a thread busy for hours.
void CheckWork(const RowProgram& program, const Shape* inputs, const Sizes& sizes, std::uint64_t count) {
  std::uint64_t elements = 0;
  for (std::size_t k = 0; k < program.inputs.size(); ++k) elements += inputs[k].count();
  for (std::size_t k = 0; k < program.outputs.size(); ++k) elements += sizes.OutputShape(k).count();
  if (count <= kUsualWork || count / kMaxRepeats <= elements) return;
  throw Error("a domain of " + std::to_string(count) + " elements for tensors of " + std::to_string(elements) +
              kDamaged);
}

// The sizes of the grid, checked against each other and against the outputs.
void MeasureIndexed(const RowProgram& program, const Shape* inputs, const Sizes& sizes, Grid* grid) {
  const std::int64_t domain[] = {sizes.Value(program.domain[0]), sizes.Value(program.domain[1]),
                                 sizes.Value(program.domain[2])};
  grid->outer = static_cast<std::uint64_t>(domain[0]);
  grid->columns = static_cast<std::uint64_t>(domain[1]);
  grid->inner = static_cast<std::uint64_t>(domain[2]);
  grid->domain.count = static_cast<std::uint64_t>(Elements(domain, 3));
  const std::int64_t rows[] = {domain[0], domain[2]};
  const auto count = static_cast<std::uint64_t>(Elements(rows, 2));
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    const Shape shape = sizes.OutputShape(k);
    const bool is_element = program.results[k].form == Form::kElement;
    if (shape.count() == (is_element ? grid->domain.count : count)) continue;
    throw Error("output " + std::to_string(k) + " of shape " + ToString(shape) + " is not that of the rows" + kDamaged);
  }
  CheckWork(program, inputs, sizes, grid->domain.count);
}

}  // namespace

void RowKernel::Compute(OrtKernelContext* context) const {
  const RowProgram& program = rows_;
  if (program.index) return ComputeIndexed(context);
  Shape inputs[kMaxInputs];
  Shape views[2] = {};
  Grid grid;
  for (std::size_t k = 0; k < program.inputs.size(); ++k) {
    grid.domain.input[k] = InputTensor(context, k, &inputs[k]);
  }
  ViewShapes(program, inputs, views);
  Shape rows = views[0];
  std::fill(rows.dims + program.first, rows.dims + program.last, 1);
  grid.outer = Count(views[0], 0, program.first);
  grid.columns = Count(views[0], program.first, program.last);
  grid.inner = Count(views[0], program.last, views[0].rank);
  grid.domain.count = views[0].count();
  bool wanted = false;
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    const Shape shape = OutputShape(program, program.results[k], views);
    grid.domain.output[k] = OutputTensor(context, k, shape);
    if (shape.count() == 0) grid.domain.output[k] = nullptr;
    wanted = wanted || grid.domain.output[k] != nullptr;
  }
  if (!wanted) return;
  for (std::size_t k = 0; k < program.inputs.size(); ++k) {
    const Operand& operand = program.operands[k];
    Lay(program, inputs[k], operand, views[operand.view], rows, &grid.domain.access[k], &grid.row_access[k]);
  }
  Run(grid, context);
}

void RowKernel::ComputeIndexed(OrtKernelContext* context) const {
  const RowProgram& program = rows_;
  Shape shapes[kMaxInputs];
  const void* data[kMaxInputs];
  for (std::size_t k = 0; k < program.inputs.size(); ++k) data[k] = InputTensor(context, k, &shapes[k]);
  const Sizes sizes(*program.index, shapes, program.inputs.size());
  Grid grid;
  MeasureIndexed(program, shapes, sizes, &grid);
  bool wanted = false;
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    const Shape shape = sizes.OutputShape(k);
    grid.domain.output[k] = OutputTensor(context, k, shape);
    wanted = wanted || shape.count() > 0;
  }
  if (!wanted || grid.rows() == 0) return;
  if (grid.columns == 0) throw Error("rows of no elements, which no kernel with index operations takes");
  FillLeaves(*program.index, {program.inputs, shapes, data}, sizes, checked_, &grid.domain);
  for (std::size_t k = 0; k < program.accesses(); ++k) {
    if (program.operands[k].row) grid.row_access[k] = OverRows(grid, grid.domain.access[k], k);
  }
  Run(grid, context);
}

}  // namespace onnxopt
