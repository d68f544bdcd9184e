#include "cpu/block.h"

#include <cstring>
#include <vector>

#include "call/block.h"
#include "call/tensors.h"
#include "cpu/convolution.h"

namespace onnxopt {
namespace {

// Copies `bytes` of every pixel.
void CopyPixels(const char* from, std::size_t from_pixel, char* to, std::size_t to_pixel, std::size_t bytes,
                std::uint64_t pixels) {
  for (std::uint64_t k = 0; k < pixels; ++k) std::memcpy(to + k * to_pixel, from + k * from_pixel, bytes);
}

class Calls {
 public:
  Calls(OrtKernelContext* context, const Block& block)
      : context_(context), block_(block), shapes_(block.inputs), data_(block.inputs + block.channels.size()) {
    for (std::size_t k = 0; k < block.inputs; ++k) {
      // Inputs are only read.
      data_[k] = static_cast<char*>(const_cast<void*>(InputTensor(context, k, &shapes_[k])));
    }
    call_ = MakeBlock(block, shapes_.data());
    for (std::size_t k = block.inputs; k < data_.size(); ++k) {
      const Shape& shape = call_.shapes[k];
      if (k < block.inputs + block.outputs) {
        data_[k] = static_cast<char*>(OutputTensor(context, k - block.inputs, shape));
      }
      if (data_[k] == nullptr) {
        inside_.emplace_back(static_cast<std::size_t>(shape.count()) * Size(block.dtype));
        data_[k] = inside_.back().data();
      }
    }
  }

  // Parts of wider tensors are copied before and behind a convolution.
  void Step(std::size_t k) {
    const BlockStep& step = block_.steps[k];
    const ConvolutionSizes& sizes = call_.steps[k];
    if (sizes.output().count() == 0) return;
    std::vector<char> x;
    std::vector<char> residual;
    const void* inputs[kConvolutionInputs] = {Packed(step.x, &x), data_[step.w]};
    if (step.bias) inputs[*step.convolution.bias] = data_[*step.bias];
    if (step.residual) inputs[*step.convolution.residual] = Packed(*step.residual, &residual);
    std::vector<char> y(static_cast<std::size_t>(sizes.output().count()) * Size(block_.dtype));
    RunConvolution(context_, step.convolution, sizes, inputs, y.data());
    const std::size_t bytes = Bytes(step.y.channels);
    CopyPixels(y.data(), bytes, At(step.y), PixelBytes(step.y), bytes, Pixels(step.y));
  }

 private:
  std::size_t Bytes(std::int64_t elements) const { return static_cast<std::size_t>(elements) * Size(block_.dtype); }
  std::size_t PixelBytes(const Part& part) const { return Bytes(part.of); }
  char* At(const Part& part) const { return data_[part.tensor] + Bytes(part.first); }
  std::uint64_t Pixels(const Part& part) const {
    const Shape& shape = call_.shapes[part.tensor];
    return static_cast<std::uint64_t>(Elements(shape.dims, shape.rank - 1));
  }

  const char* Packed(const Part& part, std::vector<char>* copy) const {
    if (part.channels == part.of) return data_[part.tensor];
    const std::size_t bytes = Bytes(part.channels);
    copy->resize(Pixels(part) * bytes);
    CopyPixels(At(part), PixelBytes(part), copy->data(), bytes, bytes, Pixels(part));
    return copy->data();
  }

  OrtKernelContext* context_;
  const Block& block_;
  std::vector<Shape> shapes_;
  std::vector<char*> data_;
  std::vector<std::vector<char>> inside_;
  BlockCall call_;
};

}  // namespace

void BlockCpuKernel::Compute(OrtKernelContext* context) const {
  const Block& block = kernel().meaning.As<Block>();
  Calls calls(context, block);
  for (std::size_t k = 0; k < block.steps.size(); ++k) calls.Step(k);
}

}  // namespace onnxopt
