#include "cuda/convolution/convolution.h"

#include "call/convolution.h"
#include "call/tensors.h"
#include "cuda/launch/provider_options.h"
#include "cuda/launch/stated_shape.h"
#include "cuda/launch/stream.h"

namespace onnxopt::cuda {

ConvolutionCudaKernel::ConvolutionCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
    : FusedKernel(kernel),
      convolution_(kernel.meaning.As<Convolution>()),
      driver_(library.driver()),
      api_(FindCudnn()),
      allocator_(info),
      // No kernel is ready for codes: one is compiled for every shape.
      runner_(driver_, api_, convolution_.codes ? Preference::kFastest : Preference::kSoonest),
      own_(MakeOwnConvolution(kernel, library)) {
  Prepare(info);
}

// Builds the plans of shapes that are known already.
void ConvolutionCudaKernel::Prepare(const OrtKernelInfo* info) {
  const StatedShapes stated(kernel(), info);
  for (const std::vector<Shape>& shapes : stated.all()) {
    ConvolutionProblem problem{convolution_, {}};
    try {
      problem.sizes = MakeConvolution(&problem.convolution, shapes.data());
    } catch (const Error&) {
      return;  // the run says so, where there is one
    }
    if (convolution_.needs_own_kernel() || TakesOver(problem.sizes)) continue;
    runner_.Prepare(problem, stated.alone());
  }
}

// Whether no plan is needed; where no context is current, that shows at the run.
bool ConvolutionCudaKernel::TakesOver(const ConvolutionSizes& sizes) const {
  if (own_ == nullptr) return false;
  Context context = nullptr;
  driver_.Check(driver_.cuCtxGetCurrent(&context), "cannot ask for the CUDA context");
  return context != nullptr && own_->Takes(sizes);
}

void ConvolutionCudaKernel::Compute(OrtKernelContext* ort_context) const {
  Shape shapes[Convolution::kMaxInputs];
  const void* inputs[Convolution::kMaxInputs] = {};
  for (std::size_t k = 0; k < convolution_.inputs.size(); ++k) inputs[k] = InputTensor(ort_context, k, &shapes[k]);
  ConvolutionProblem problem{convolution_, {}};
  problem.sizes = MakeConvolution(&problem.convolution, shapes);
  const Shape& output = problem.sizes.output;
  void* const y = OutputTensor(ort_context, 0, output);
  if (y == nullptr || output.count() == 0) return;
  const ConvolutionPointers at{inputs[convolution_.x],
                               inputs[convolution_.w],
                               convolution_.bias ? inputs[*convolution_.bias] : nullptr,
                               convolution_.residual ? inputs[*convolution_.residual] : nullptr,
                               convolution_.slope ? inputs[*convolution_.slope] : nullptr,
                               y,
                               convolution_.scale ? inputs[*convolution_.scale] : nullptr};
  problem.tf32 = convolution_.inputs[convolution_.x] == Dtype::kFloat32 && UsesTf32(ort_context);
  const auto [stream, context] = EnterStream(driver_, ort_context);
  if (own_ != nullptr && shapes[convolution_.x].count() != 0) {
    if (own_->Run(problem.sizes, {at.x, at.w, at.bias, at.residual, at.slope, at.scale, at.y}, stream)) return;
  }
  if (convolution_.needs_own_kernel()) {
    throw Error("no entry point runs the convolution " + problem.Describe() +
                "; set ONNXOPT_DISABLE=1 to run it without onnxopt's kernels");
  }
  int capturing = 0;
  driver_.Check(driver_.cuStreamIsCapturing(stream, &capturing), "cannot ask whether the stream is capturing");
  CallScratch scratch(allocator_, ort_context);
  ConvolutionCall call{problem, at, stream, context, capturing != 0, &scratch};
  if (shapes[convolution_.x].count() == 0) return runner_.FillFromNothing(call);
  const ConvolutionRunner::Ready plan = runner_.PlanFor(&call);
  void* const workspace = scratch.Of(static_cast<std::size_t>(plan->workspace()));
  const BorrowedHandle handle(api_, context, stream);
  plan->Run(api_, handle.raw(), at, workspace);
}

}  // namespace onnxopt::cuda
