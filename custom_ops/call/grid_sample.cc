#include "call/grid_sample.h"

#include <algorithm>

#include "call/bind.h"
#include "call/tensors.h"
#include "program/window.h"

namespace onnxopt {
namespace {

// [N, first, *size, last], or without the first or the last where they are below 0.
Shape ShapeAround(std::int64_t n, std::int64_t first, const std::vector<std::int64_t>& size, std::int64_t last) {
  Shape shape{1, {n}};
  if (first >= 0) shape.dims[shape.rank++] = first;
  for (const std::int64_t dim : size) shape.dims[shape.rank++] = dim;
  if (last >= 0) shape.dims[shape.rank++] = last;
  return shape;
}

void CheckRank(const Binding& binding, const char* operand, std::size_t input, std::size_t rank) {
  const Shape& shape = binding.shape(input);
  if (shape.rank != rank) binding.Fail(operand, shape, "has not " + std::to_string(rank) + " dims");
  if (*std::max_element(shape.dims, shape.dims + shape.rank) > kMaxExtent) {
    binding.Fail(operand, shape, "has a dim of 2^31 or more");
  }
}

void CheckShape(const Binding& binding, const char* operand, std::size_t input, const Shape& expected) {
  const Shape& shape = binding.shape(input);
  if (!(shape == expected)) binding.Fail(operand, shape, "is not " + ToString(expected));
}

GridSampleMap MapOf(std::int64_t depth, std::int64_t height, std::int64_t width, std::int64_t points) {
  const auto as_int = [](std::int64_t dim) { return static_cast<int>(dim); };
  return {0, 0, as_int(depth), as_int(height), as_int(width), as_int(points)};
}

// Operands of the shapes that the operator has. Returns the grid's size.
std::vector<std::int64_t> BindPlain(const GridSample& meaning, const Binding& binding, GridSampleCall* call) {
  const auto dims = static_cast<std::size_t>(meaning.dims);
  CheckRank(binding, "data", meaning.data, dims + 2);
  CheckRank(binding, "grid", meaning.x, dims + 2);
  const Shape& data = binding.shape(meaning.data);
  const Shape& grid = binding.shape(meaning.x);
  const std::int64_t* extents = data.dims + (meaning.planes ? 2 : 1);
  const std::vector<std::int64_t> size(grid.dims + 1, grid.dims + 1 + dims);
  CheckShape(binding, "grid", meaning.x, ShapeAround(data.dims[0], -1, size, meaning.dims));
  if (meaning.weights) CheckShape(binding, "weights", *meaning.weights, ShapeAround(data.dims[0], 1, size, -1));
  call->batch = data.dims[0];
  call->heads = 1;
  call->channels = data.dims[meaning.planes ? 1 : dims + 1];
  const std::int64_t pixels = Elements(extents, dims);
  if (pixels == 0) binding.Fail("data", data, "has no pixels");
  const std::int64_t all = Elements(size.data(), dims);
  const std::int64_t points = meaning.summed ? size.back() : 1;
  call->data = {Elements(data.dims + 1, dims + 1), 0, meaning.planes ? pixels : 1, meaning.planes ? 1 : call->channels};
  call->grid = {Elements(grid.dims + 1, dims + 1), 0, points * meaning.dims, meaning.dims};
  call->weights = {all, 0, points, 1};
  call->map[0] = MapOf(dims == 3 ? extents[0] : 1, extents[dims - 2], extents[dims - 1], points);
  return size;
}

// One past the last element of a b that the steps reach, each so many times. All numbers are below 2^31.
std::uint64_t Reach(std::int64_t first, std::initializer_list<std::pair<std::int64_t, std::int64_t>> steps) {
  auto last = static_cast<std::uint64_t>(first);
  for (const auto& [step, count] : steps)
    last += static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(count - 1);
  return last + 1;
}

// The number of b, by the elements that an operand has for each.
std::int64_t BatchOf(const Binding& binding, const char* operand, std::size_t input, std::int64_t elements) {
  const std::uint64_t count = binding.shape(input).count();
  const auto each = static_cast<std::uint64_t>(elements);
  if (count % each != 0) {
    binding.Fail(operand, binding.shape(input),
                 "does not have " + std::to_string(elements) + " elements of each sample");
  }
  return static_cast<std::int64_t>(count / each);
}

void CheckReach(const Binding& binding, const char* operand, std::size_t input, std::uint64_t reach,
                std::int64_t elements) {
  if (reach <= static_cast<std::uint64_t>(elements)) return;
  binding.Fail(operand, binding.shape(input), "is read beyond its end");
}

GridSamplePointSteps StepsOf(const GridSampleSteps& of) { return {of.batch, of.head, of.position, of.point}; }

// Operands that are read where they are stored. Returns the grid's size.
std::vector<std::int64_t> BindView(const GridSample& meaning, const Binding& binding, GridSampleCall* call) {
  const GridSampleView& view = *meaning.view;
  call->batch = BatchOf(binding, "data", meaning.data, view.batch);
  call->heads = view.heads;
  call->channels = view.channels;
  std::vector<std::int64_t> outer = view.size;
  std::int64_t points = 1;
  if (meaning.summed) {
    points = outer.back();
    outer.pop_back();
  }
  std::int64_t positions = 1;
  for (const std::int64_t dim : outer) {
    if (dim > kMaxExtent / positions) throw Error("grid_sample: a grid has 2^31 positions or more");
    positions *= dim;
  }
  std::int64_t of_levels = 0;
  std::size_t k = 0;
  for (const GridSampleLevel& level : view.levels) {
    std::int64_t pixels = level.width;
    for (const std::int64_t dim : {level.height, level.depth}) {
      if (dim > kMaxExtent / pixels) throw Error("grid_sample: a map has 2^31 pixels or more");
      pixels *= dim;
    }
    CheckReach(binding, "data", meaning.data,
               Reach(level.data, {{view.head, view.heads}, {view.channel, view.channels}, {view.pixel, pixels}}),
               view.batch);
    CheckReach(binding, "grid", meaning.x,
               Reach(level.grid + meaning.dims - 1,
                     {{view.grid.head, view.heads}, {view.grid.position, positions}, {view.grid.point, level.points}}),
               view.grid.batch);
    call->map[k] = MapOf(level.depth, level.height, level.width, level.points);
    call->map[k].data = level.data;
    call->map[k++].grid = level.grid;
    of_levels += level.points;
  }
  if (of_levels != points || (meaning.dims == 2 && view.levels.front().depth != 1)) {
    throw Error("grid_sample: the levels of a view do not fit its size");
  }
  if (BatchOf(binding, "grid", meaning.x, view.grid.batch) != call->batch) {
    binding.Fail("grid", binding.shape(meaning.x), "is not of " + std::to_string(call->batch) + " samples");
  }
  call->data = {view.batch, view.head, view.channel, view.pixel};
  call->grid = StepsOf(view.grid);
  if (meaning.weights) {
    const GridSampleSteps& steps = *view.weights;
    CheckReach(binding, "weights", *meaning.weights,
               Reach(0, {{steps.head, view.heads}, {steps.position, positions}, {steps.point, points}}), steps.batch);
    if (BatchOf(binding, "weights", *meaning.weights, steps.batch) != call->batch) {
      binding.Fail("weights", binding.shape(*meaning.weights), "is not of " + std::to_string(call->batch) + " samples");
    }
    call->weights = StepsOf(steps);
  }
  return view.size;
}

}  // namespace

GridSampleCall OpenCall(const GridSample& meaning, OrtKernelContext* context) {
  static_assert(GridSample::kMaxInputs <= kGridSampleInputs, "room for inputs");
  const Binding binding("grid_sample", meaning.inputs.size(), context);
  GridSampleCall call{};
  for (std::size_t k = 0; k < meaning.inputs.size(); ++k) call.input[k] = binding.data(k);
  std::vector<std::int64_t> size =
      meaning.view ? BindView(meaning, binding, &call) : BindPlain(meaning, binding, &call);
  if (meaning.summed) size.pop_back();
  call.positions = Elements(size.data(), size.size());
  const std::int64_t channels = meaning.result_planes ? call.channels : call.heads * call.channels;
  const std::int64_t of_head = call.channels * call.positions;
  if (meaning.result_planes) {
    if (meaning.kept) size.push_back(1);
    call.result_shape = ShapeAround(call.batch * call.heads, channels, size, -1);
    call.result = {call.heads * of_head, of_head, call.positions, 1};
  } else {
    call.result_shape = ShapeAround(call.batch, -1, size, channels);
    call.result = {call.heads * of_head, call.channels, 1, channels};
  }
  const std::int64_t samples = call.result_shape.dims[0];
  if (meaning.prologue) binding.Reads(*meaning.prologue, call.result_shape, samples, meaning.dims, 1);
  binding.Reads(meaning.epilogue, call.result_shape, samples, channels, 1);
  call.y = OutputTensor(context, 0, call.result_shape);
  if (call.result_shape.count() == 0) call.y = nullptr;
  return call;
}

}  // namespace onnxopt
