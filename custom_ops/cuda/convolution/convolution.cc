#include "cuda/convolution/convolution.h"

#include <algorithm>

#include "call/convolution.h"
#include "call/tensors.h"
#include "cuda/convolution/epilogue.h"
#include "cuda/launch/provider_options.h"
#include "cuda/launch/stopwatch.h"
#include "cuda/launch/stream.h"

namespace onnxopt::cuda {
namespace {

constexpr std::size_t kPlans = 32;  // of different shapes, that a node keeps
constexpr std::size_t kTuned = 16;  // plans measured when tuning
constexpr int kNameBytes = 256;
constexpr std::int64_t kAlignment = 16;  // that engines ask for at most

const cudnn::Api& FindCudnn() {
  const cudnn::Api* api = cudnn::Find();
  if (api == nullptr) {
    throw Error("no libcudnn.so.9 in this process; set ONNXOPT_DISABLE=1 to run without onnxopt's kernels");
  }
  cudnn::RequireCublaslt(*api);
  return *api;
}

std::int64_t Alignment(const ConvolutionPointers& at) {
  std::uintptr_t bits = static_cast<std::uintptr_t>(kAlignment);
  for (const void* data : {at.x, at.w, at.bias, at.residual, at.slope, static_cast<const void*>(at.y)}) {
    bits |= reinterpret_cast<std::uintptr_t>(data);
  }
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

// The shape of an input where the graph states it as numbers.
std::optional<Shape> KnownShape(const OrtKernelInfo* info, std::size_t input) {
  OrtTypeInfo* type = nullptr;
  Check(Ort().KernelInfo_GetInputTypeInfo(info, input, &type));
  const std::unique_ptr<OrtTypeInfo, void (*)(OrtTypeInfo*)> kept(type, Ort().ReleaseTypeInfo);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  Check(Ort().CastTypeInfoToTensorInfo(type, &tensor));
  Shape shape{};
  if (tensor == nullptr) return std::nullopt;
  Check(Ort().GetDimensionsCount(tensor, &shape.rank));
  if (shape.rank == 0 || shape.rank > kMaxRank) return std::nullopt;
  Check(Ort().GetDimensions(tensor, shape.dims, shape.rank));
  const bool known = std::all_of(shape.dims, shape.dims + shape.rank, [](std::int64_t dim) { return dim > 0; });
  return known ? std::optional<Shape>(shape) : std::nullopt;
}

}  // namespace

struct ConvolutionCudaKernel::Call {
  ConvolutionProblem problem;
  ConvolutionPointers at;
  Stream stream;
  Context context;
  bool capturing;
};

ConvolutionCudaKernel::ConvolutionCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
    : FusedKernel(kernel),
      convolution_(kernel.meaning.As<Convolution>()),
      driver_(library.driver()),
      api_(FindCudnn()),
      allocator_(std::make_shared<Allocator>(info)) {
  ConvolutionPlans::Get();  // a damaged file shows now
  Prepare(info);
}

// Builds the plan where the shapes are known already. Whether float32 may be rounded to TF32 shows at the first run.
void ConvolutionCudaKernel::Prepare(const OrtKernelInfo* info) {
  Shape shapes[kConvolutionInputs];
  for (std::size_t k = 0; k < convolution_.inputs; ++k) {
    const std::optional<Shape> shape = KnownShape(info, k);
    if (!shape) return;
    shapes[k] = *shape;
  }
  preference_ = Preference::kFastest;
  Context context = nullptr;
  driver_.Check(driver_.cuCtxGetCurrent(&context), "cannot ask for the CUDA context");
  if (context == nullptr || convolution_.dtype == Dtype::kFloat32 || ConvolutionPlans::Get().tunes()) return;
  ConvolutionProblem problem{convolution_, {}, false, kAlignment};
  try {
    problem.sizes = MakeConvolution(convolution_, shapes);
  } catch (const Error&) {
    return;  // the run says so, where there is one
  }
  if (problem.Compiles()) {
    pending_ = PendingConvolution::Start([this, context, problem] {
      driver_.Check(driver_.cuCtxSetCurrent(context), "cannot enter the CUDA context");
      return Build(context, problem);
    });
    recent_.push_front(Named(problem, context, nullptr));
  } else {
    recent_.push_front(Named(problem, context, Build(context, problem)));
  }
}

void ConvolutionCudaKernel::Compute(OrtKernelContext* ort_context) const {
  Shape shapes[kConvolutionInputs];
  const void* inputs[kConvolutionInputs] = {};
  for (std::size_t k = 0; k < convolution_.inputs; ++k) inputs[k] = InputTensor(ort_context, k, &shapes[k]);
  ConvolutionProblem problem{convolution_, MakeConvolution(convolution_, shapes)};
  const Shape output = problem.sizes.output();
  void* const y = OutputTensor(ort_context, 0, output);
  if (y == nullptr || output.count() == 0) return;
  const ConvolutionPointers at{inputs[convolution_.x],
                               inputs[convolution_.w],
                               convolution_.bias ? inputs[*convolution_.bias] : nullptr,
                               convolution_.residual ? inputs[*convolution_.residual] : nullptr,
                               convolution_.slope ? inputs[*convolution_.slope] : nullptr,
                               y};
  problem.tf32 = convolution_.dtype == Dtype::kFloat32 && UsesTf32(ort_context);
  const auto [stream, context] = EnterStream(driver_, ort_context);
  int capturing = 0;
  driver_.Check(driver_.cuStreamIsCapturing(stream, &capturing), "cannot ask whether the stream is capturing");
  const std::lock_guard<std::mutex> lock(mutex_);
  Call call{problem, at, stream, context, capturing != 0};
  if (shapes[convolution_.x].count() == 0) return FillFromNothing(call);
  call.problem.alignment = Alignment(at);
  const Ready plan = PlanFor(call);
  void* const workspace = ScratchOf(call, plan->workspace());
  ConvolutionHandle& handle = HandleOf(api_, context, stream);
  const std::lock_guard<std::mutex> using_handle(handle.mutex);
  plan->Run(api_, handle.raw, at, workspace);
}

// A sum over nothing is zero: cuDNN takes no empty input, which padding makes a result of.
void ConvolutionCudaKernel::FillFromNothing(const Call& call) const {
  const std::size_t bytes = call.problem.sizes.output().count() * Size(convolution_.dtype);
  driver_.Check(driver_.cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(call.at.y), 0, bytes, call.stream),
                "cannot clear the result of a convolution");
  void* const scratch = ScratchOf(call, EpilogueScratch(call.problem));
  ConvolutionHandle& handle = HandleOf(api_, call.context, call.stream);
  const std::lock_guard<std::mutex> using_handle(handle.mutex);
  RunEpilogue(api_, handle.raw, call.problem, call.at, scratch);
}

ConvolutionCudaKernel::Ready ConvolutionCudaKernel::PlanFor(const Call& call) const {
  const ConvolutionProblem& problem = call.problem;
  const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const Recent& entry) {
    return entry.sizes == problem.sizes && entry.tf32 == problem.tf32 && entry.alignment == problem.alignment &&
           entry.context == call.context;
  });
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
  } else {
    if (call.capturing) {
      throw Error("the convolution " + problem.Describe() +
                  " runs for the first time while its stream is capturing; run the shape once before");
    }
    Measure(call);
    recent_.push_front(Named(problem, call.context, Build(call.context, problem)));
    if (recent_.size() > kPlans) recent_.pop_back();
  }
  Ready& plan = recent_.front().plan;
  if (plan == nullptr) plan = pending_->Take();
  if (call.capturing && std::find(captured_.begin(), captured_.end(), plan) == captured_.end()) {
    captured_.push_back(plan);
  }
  return plan;
}

ConvolutionCudaKernel::Recent ConvolutionCudaKernel::Named(const ConvolutionProblem& problem, Context context,
                                                           Ready plan) {
  return {problem.sizes, problem.tf32, problem.alignment, context, std::move(plan)};
}

ConvolutionCudaKernel::Ready ConvolutionCudaKernel::Build(Context context, const ConvolutionProblem& problem) const {
  const auto measured = ConvolutionPlans::Get().Find(Gpu(), api_.cudnnGetVersion(), problem.Describe());
  return ReadyFor(api_, context, Device(), problem, measured ? &measured->choice : nullptr, preference_);
}

// Measures the plans of a problem that has no entry, where that is asked for.
void ConvolutionCudaKernel::Measure(const Call& call) const {
  ConvolutionPlans& known = ConvolutionPlans::Get();
  // The default stream cannot be captured, which measuring does.
  if (!known.tunes() || call.stream == nullptr) return;
  const std::string problem = call.problem.Describe();
  const std::string gpu = Gpu();
  const std::size_t version = api_.cudnnGetVersion();
  if (known.Find(gpu, version, problem)) return;
  std::vector<EnginePlan> plans;
  {
    ConvolutionHandle& builder = BuilderOf(api_, call.context);
    const std::lock_guard<std::mutex> builds(builder.mutex);
    plans = OfferedPlans(api_, builder.raw, call.problem, kTuned, preference_);
  }
  if (plans.empty()) return;
  ConvolutionHandle& handle = HandleOf(api_, call.context, call.stream);
  const std::lock_guard<std::mutex> using_handle(handle.mutex);
  std::int64_t bytes = 0;
  for (const EnginePlan& plan : plans) bytes = std::max(bytes, plan.workspace());
  void* const workspace = ScratchOf(call, bytes);
  const Stopwatch stopwatch(driver_, call.stream, allocator_);
  const auto [first, best] =
      stopwatch.Fastest(plans.size(), [&](std::size_t way) { plans[way].Execute(handle.raw, call.at, workspace); });
  const std::optional<EngineChoice> choice = plans[best.way].Choice();
  if (choice) known.Add(gpu, version, problem, {*choice, best.microseconds, first.microseconds});
}

void* ConvolutionCudaKernel::ScratchOf(const Call& call, std::int64_t bytes) const {
  if (bytes == 0) return nullptr;
  const std::shared_ptr<const Workspace> workspace =
      WorkspaceOf(call.stream, allocator_, !call.capturing, static_cast<std::size_t>(bytes));
  if (workspace == nullptr) {
    throw Error("a convolution has no workspace, and its stream is capturing; run the model once before");
  }
  if (std::find(held_.begin(), held_.end(), workspace) == held_.end()) held_.push_back(workspace);
  return workspace->data();
}

std::string ConvolutionCudaKernel::Device() const {
  cuda::Device device = 0;
  int numbers[3] = {};
  const int attributes[] = {kComputeCapabilityMajor, kComputeCapabilityMinor, kMultiprocessorCount};
  driver_.Check(driver_.cuCtxGetDevice(&device), "cannot ask for the GPU");
  for (std::size_t k = 0; k < 3; ++k) {
    driver_.Check(driver_.cuDeviceGetAttribute(&numbers[k], attributes[k], device), "cannot ask for a GPU's arch");
  }
  return Gpu() + " " + std::to_string(numbers[0]) + "." + std::to_string(numbers[1]) + " of " +
         std::to_string(numbers[2]) + " multiprocessors";
}

std::string ConvolutionCudaKernel::Gpu() const {
  cuda::Device device = 0;
  char name[kNameBytes] = "";
  driver_.Check(driver_.cuCtxGetDevice(&device), "cannot ask for the GPU");
  driver_.Check(driver_.cuDeviceGetName(name, kNameBytes, device), "cannot ask for the GPU's name");
  return name;
}

}  // namespace onnxopt::cuda
