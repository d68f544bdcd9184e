#include "call/block.h"

#include <algorithm>
#include <string>

#include "support/error.h"
#include "support/math.h"

namespace onnxopt {
namespace {

constexpr std::size_t kAligned = 256;  // bytes, of a tensor in the buffer

Shape ShapeOf(const Part& part, const std::vector<Shape>& shapes) {
  Shape shape = shapes[static_cast<std::size_t>(part.tensor)];
  if (shape.rank != 4) throw Error("a tensor that convolutions share is not [N, H, W, C]: " + ToString(shape));
  if (shape.dims[3] != part.of) {
    throw Error("convolutions read a tensor " + ToString(shape) + " that should have " + std::to_string(part.of) +
                " channels");
  }
  shape.dims[3] = part.channels;
  return shape;
}

// Where a copy or a step writes a part of a tensor of this shape, with the part's channels.
void Target(const Part& part, Shape whole, std::vector<Shape>* shapes) {
  whole.dims[3] = part.of;
  Shape& target = (*shapes)[static_cast<std::size_t>(part.tensor)];
  if (target.rank == 0) target = whole;
  if (!(target == whole)) {
    throw Error("a block writes parts of one tensor that are " + ToString(target) + " and " + ToString(whole));
  }
}

// The first and the last step that uses a tensor.
struct Life {
  std::size_t first;
  std::size_t last;
};

std::vector<Life> Lives(const Block& block) {
  std::vector<Life> lives(block.channels.size(), {block.steps.size(), 0});
  const auto use = [&](const Part& part, std::size_t step) {
    const std::int64_t place = part.tensor - static_cast<std::int64_t>(block.inputs.size());
    if (place < 0) return;
    Life& life = lives[static_cast<std::size_t>(place)];
    life = {std::min(life.first, step), std::max(life.last, step)};
  };
  for (const BlockCopy& copy : block.copies) use(copy.y, 0);
  for (std::size_t k = 0; k < block.steps.size(); ++k) {
    const BlockStep& step = block.steps[k];
    use(step.x, k);
    if (step.residual) use(*step.residual, k);
    use(step.y, k);
  }
  return lives;
}

}  // namespace

BlockCall MakeBlock(const Block& block, const Shape* inputs) {
  BlockCall call;
  call.shapes.assign(inputs, inputs + block.inputs.size());
  call.shapes.resize(block.inputs.size() + block.channels.size(), Shape{});
  for (const BlockCopy& copy : block.copies) Target(copy.y, ShapeOf(copy.x, call.shapes), &call.shapes);
  for (const BlockStep& step : block.steps) {
    Shape operands[Convolution::kMaxInputs];
    std::size_t count = 0;
    operands[count++] = ShapeOf(step.x, call.shapes);
    operands[count++] = call.shapes[step.w];
    if (step.bias) operands[count++] = call.shapes[*step.bias];
    if (step.residual) operands[count++] = ShapeOf(*step.residual, call.shapes);
    if (step.slope) operands[count++] = call.shapes[*step.slope];
    Convolution convolution = ConvolutionOf(block, step);
    ConvolutionSizes sizes = MakeConvolution(&convolution, operands);
    if (sizes.k != step.y.channels) {
      throw Error("a convolution writes " + std::to_string(sizes.k) + " channels where there is room for " +
                  std::to_string(step.y.channels));
    }
    Target(step.y, sizes.output, &call.shapes);
    sizes.x_pixel = step.x.of;
    if (step.residual) sizes.residual_pixel = step.residual->of;
    sizes.y_pixel = step.y.of;
    call.steps.push_back(sizes);
  }
  return call;
}

BlockMemory PlaceInside(const Block& block, const BlockCall& call) {
  const std::vector<Life> lives = Lives(block);
  const std::size_t inside = block.channels.size() - block.outputs.size();
  BlockMemory memory{std::vector<std::size_t>(inside, 0), 0};
  std::vector<std::size_t> ends(inside, 0);
  for (std::size_t k = 0; k < inside; ++k) {
    const Life& life = lives[block.outputs.size() + k];
    const std::size_t bytes =
        static_cast<std::size_t>(call.shapes[block.inputs.size() + block.outputs.size() + k].count()) *
        Size(block.dtype());
    const std::size_t needed = RoundUp(bytes, kAligned);
    // The lowest place that is free, moved behind each tensor that is in the way until none is.
    std::size_t at = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t other = 0; other < k; ++other) {
        const Life& of = lives[block.outputs.size() + other];
        const bool together = of.first <= life.last && life.first <= of.last;
        if (together && at < ends[other] && memory.offsets[other] < at + needed) {
          at = ends[other];
          moved = true;
        }
      }
    }
    memory.offsets[k] = at;
    ends[k] = at + needed;
    memory.total = std::max(memory.total, ends[k]);
  }
  return memory;
}

}  // namespace onnxopt
