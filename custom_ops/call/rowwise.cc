#include "call/rowwise.h"

#include <algorithm>

#include "call/tensors.h"

namespace onnxopt {
namespace {

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
  std::uint64_t known = 1;
  std::size_t open = target.size();
  for (std::size_t k = 0; k < target.size(); ++k) {
    if (target[k] < 0) {
      open = k;
      continue;
    }
    if (target[k] == 0 && k >= shape.rank) throw Error("shape " + ToString(shape) + " has no dim to take over");
    result.dims[k] = target[k] == 0 ? shape.dims[k] : target[k];
    known *= static_cast<std::uint64_t>(result.dims[k]);
  }
  if (open < target.size()) {
    if (known == 0 || shape.count() % known != 0) throw Error("shape " + ToString(shape) + " cannot be reshaped");
    result.dims[open] = static_cast<std::int64_t>(shape.count() / known);
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

std::uint64_t Elements(const Shape& shape, std::size_t first, std::size_t last) {
  std::uint64_t product = 1;
  for (std::size_t k = first; k < last; ++k) product *= static_cast<std::uint64_t>(shape.dims[k]);
  return product;
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
  if (operand.row && input.count() > 1 && operand.view == 0 && !Collapse(shape, rows, row_access)) {
    throw Error("shape " + ToString(input) + " has more than one element a row of " + std::to_string(program.first));
  }
}

// How an access that is the same for a whole row lies over the rows.
Access OverRows(const Grid& grid, const Access& access) {
  Access rows = access;
  for (std::size_t k = 0; k < rows.runs; ++k) {
    if (rows.run[k].div >= grid.columns * grid.inner) rows.run[k].div /= grid.columns;
  }
  return rows;
}

}  // namespace

void RowKernel::Compute(OrtKernelContext* context) const {
  const RowProgram& program = rows_;
  if (program.index) return ComputeIndexed(context);
  Shape inputs[kMaxInputs];
  Shape views[2];
  Grid grid;
  for (std::size_t k = 0; k < program.inputs.size(); ++k) {
    grid.domain.input[k] = InputTensor(context, k, &inputs[k]);
  }
  ViewShapes(program, inputs, views);
  Shape rows = views[0];
  std::fill(rows.dims + program.first, rows.dims + program.last, 1);
  grid.outer = Elements(views[0], 0, program.first);
  grid.columns = Elements(views[0], program.first, program.last);
  grid.inner = Elements(views[0], program.last, views[0].rank);
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
  grid.outer = sizes.Value(program.domain[0]);
  grid.columns = sizes.Value(program.domain[1]);
  grid.inner = sizes.Value(program.domain[2]);
  grid.domain.count = grid.rows() * grid.columns;
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    const Shape shape = sizes.OutputShape(k);
    grid.domain.output[k] = OutputTensor(context, k, shape);
    const bool is_element = program.results[k].form == Form::kElement;
    if (shape.count() != (is_element ? grid.domain.count : grid.rows())) {
      throw Error("output " + std::to_string(k) + " of shape " + ToString(shape) + " is not that of the rows");
    }
  }
  if (grid.rows() == 0) return;
  if (grid.columns == 0) throw Error("rows of no elements, which no kernel with index operations takes");
  FillLeaves(*program.index, program.inputs, sizes, data, &grid.domain);
  for (std::size_t k = 0; k < program.leaves(); ++k) {
    if (program.operands[k].row) grid.row_access[k] = OverRows(grid, grid.domain.access[k]);
  }
  Run(grid, context);
}

}  // namespace onnxopt
