#include "cuda/convolution/block.h"

#include <algorithm>

#include "call/tensors.h"
#include "cuda/launch/provider_options.h"
#include "cuda/launch/stated_shape.h"
#include "cuda/launch/stream.h"

namespace onnxopt::cuda {
namespace {

// Where every tensor of a call lies.
class Tensors {
 public:
  Tensors(const Block& block, std::vector<char*> data) : block_(block), data_(std::move(data)) {}

  char* At(const Part& part) const {
    return data_[static_cast<std::size_t>(part.tensor)] + part.first * static_cast<std::int64_t>(Size(block_.dtype()));
  }

  OwnOperands OwnOf(const BlockStep& step) const {
    const ConvolutionPointers at = Of(step);
    return {at.x, at.w, at.bias, at.residual, at.slope, nullptr, at.y};
  }

  ConvolutionPointers Of(const BlockStep& step) const {
    return {At(step.x),
            data_[step.w],
            step.bias ? data_[*step.bias] : nullptr,
            step.residual ? At(*step.residual) : nullptr,
            step.slope ? data_[*step.slope] : nullptr,
            At(step.y)};
  }

 private:
  const Block& block_;
  std::vector<char*> data_;
};

}  // namespace

BlockCudaKernel::BlockCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
    : FusedKernel(kernel),
      block_(kernel.meaning.As<Block>()),
      driver_(library.driver()),
      api_(FindCudnn()),
      allocator_(info),
      own_(kernel.variants.empty() ? nullptr : std::make_unique<const DenseConvolutions>(kernel, library)) {
  for (std::size_t k = 0; k < block_.steps.size(); ++k) runners_.emplace_back(driver_, api_);
  Prepare(info);
}

// Builds the plans of shapes that are known already.
void BlockCudaKernel::Prepare(const OrtKernelInfo* info) {
  const StatedShapes stated(kernel(), info);
  for (const std::vector<Shape>& shapes : stated.all()) {
    BlockCall call;
    try {
      call = MakeBlock(block_, shapes.data());
    } catch (const Error&) {
      return;  // the run says so, where there is one
    }
    for (std::size_t k = 0; k < runners_.size(); ++k) {
      if (TakesOver(k, call.steps[k])) continue;
      runners_[k].Prepare({ConvolutionOf(block_, block_.steps[k]), call.steps[k]}, stated.alone());
    }
  }
}

// Whether a step needs no plan; where no context is current, that shows at the run.
bool BlockCudaKernel::TakesOver(std::size_t step, const ConvolutionSizes& sizes) const {
  if (own_ == nullptr) return false;
  Context context = nullptr;
  driver_.Check(driver_.cuCtxGetCurrent(&context), "cannot ask for the CUDA context");
  return context != nullptr && own_->TakesStep(static_cast<unsigned>(step), sizes);
}

void BlockCudaKernel::Compute(OrtKernelContext* ort_context) const {
  const std::size_t inputs = block_.inputs.size();
  std::vector<Shape> shapes(inputs);
  std::vector<char*> data(inputs + block_.channels.size());
  for (std::size_t k = 0; k < inputs; ++k) {
    // Inputs are only read.
    data[k] = static_cast<char*>(const_cast<void*>(InputTensor(ort_context, k, &shapes[k])));
  }
  const BlockCall sizes = MakeBlock(block_, shapes.data());
  for (std::size_t k = inputs; k < inputs + block_.outputs.size(); ++k) {
    data[k] = static_cast<char*>(OutputTensor(ort_context, k - inputs, sizes.shapes[k]));
    if (data[k] == nullptr && sizes.shapes[k].count() > 0) {
      throw Error("an output of a block of convolutions is left out");
    }
  }
  for (std::size_t k = inputs; k < data.size(); ++k) {
    if (sizes.shapes[k].count() == 0) return;  // then there are no samples
  }
  const auto [stream, context] = EnterStream(driver_, ort_context);
  int capturing = 0;
  driver_.Check(driver_.cuStreamIsCapturing(stream, &capturing), "cannot ask whether the stream is capturing");
  const BlockMemory memory = PlaceInside(block_, sizes);
  CallScratch of_inside(allocator_, ort_context);  // what one convolution hands to the next
  auto* const inside = static_cast<char*>(of_inside.Of(memory.total));
  for (std::size_t k = 0; k < memory.offsets.size(); ++k) {
    data[inputs + block_.outputs.size() + k] = inside + memory.offsets[k];
  }
  const Tensors tensors(block_, std::move(data));
  const bool tf32 = block_.dtype() == Dtype::kFloat32 && UsesTf32(ort_context);
  // All plans first: measuring them overwrites results.
  std::vector<ConvolutionRunner::Ready> plans;
  std::int64_t bytes = 0;
  CallScratch scratch(allocator_, ort_context);
  for (std::size_t k = 0; k < block_.steps.size(); ++k) {
    const ConvolutionSizes& of = sizes.steps[k];
    if (of.h == 0 || of.w == 0) throw Error("a convolution of a block has an input without rows or columns");
    if (own_ != nullptr && own_->TakesStep(static_cast<unsigned>(k), of, tensors.OwnOf(block_.steps[k]))) {
      plans.emplace_back();
      continue;
    }
    ConvolutionCall call{{ConvolutionOf(block_, block_.steps[k]), of, tf32},
                         tensors.Of(block_.steps[k]),
                         stream,
                         context,
                         capturing != 0,
                         &scratch};
    plans.push_back(runners_[k].PlanFor(&call));
    bytes = std::max(bytes, plans.back()->workspace());
  }
  void* const workspace = scratch.Of(static_cast<std::size_t>(bytes));
  const BorrowedHandle handle(api_, context, stream);
  for (const BlockCopy& copy : block_.copies) {
    const Shape& of = sizes.shapes[static_cast<std::size_t>(copy.x.tensor)];
    CopyPixels(api_, handle.raw(), block_.dtype(), {of.dims[0], of.dims[1], of.dims[2], copy.x.channels},
               tensors.At(copy.x), copy.x.of, tensors.At(copy.y), copy.y.of);
  }
  for (std::size_t k = 0; k < block_.steps.size(); ++k) {
    if (plans[k] == nullptr) {
      const BlockStep& step = block_.steps[k];
      own_->RunStep(static_cast<unsigned>(k), step.activation_value, sizes.steps[k], tensors.OwnOf(step), stream);
      continue;
    }
    plans[k]->Run(api_, handle.raw(), tensors.Of(block_.steps[k]), workspace);
  }
}

}  // namespace onnxopt::cuda
