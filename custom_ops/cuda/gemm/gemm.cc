#include "cuda/gemm/gemm.h"

#include <algorithm>
#include <limits>

#include "call/tensors.h"
#include "cuda/gemm/choose.h"
#include "cuda/gemm/handle.h"
#include "cuda/gemm/other_sizes.h"
#include "cuda/launch/provider_options.h"
#include "cuda/launch/stated_shape.h"
#include "cuda/launch/stream.h"
#include "gemm/widen_codes_abi.h"
#include "kernel_file/measured/gemm_algorithms.h"
#include "kernel_file/variants.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr unsigned kBiasAlignment = 16;  // that epilogues ask for

const cublaslt::Api& FindCublaslt() {
  const cublaslt::Api* api = cublaslt::Find();
  if (api != nullptr) return *api;
  throw Error("no libcublasLt.so.12 or .13 in this process; set ONNXOPT_DISABLE=1 to run without onnxopt's kernels");
}

template <typename T>
T* Move(T* data, std::int64_t elements, std::size_t size) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(data) + elements * static_cast<std::int64_t>(size);
}

bool IsConstant(const OrtKernelInfo* info, std::size_t input) {
  int constant = 0;
  const OrtValue* value = nullptr;
  Check(Ort().KernelInfoGetConstantInput_tensor(info, input, &constant, &value));
  return constant != 0;
}

bool WeightIsConstant(const Gemm& gemm, const OrtKernelInfo* info) {
  bool constant = IsConstant(info, gemm.b);
  if (gemm.packed) constant = constant && IsConstant(info, gemm.packed->scales);
  if (gemm.packed && gemm.packed->zeros) constant = constant && IsConstant(info, *gemm.packed->zeros);
  return constant;
}

}  // namespace

struct GemmCudaKernel::Call {
  const Product& product;
  Operands operands;
  Stream stream;
  cublaslt::Handle handle;
  Context device;
  const Shape* a;
  bool tf32;
  bool capturing;
  const OrtKernelContext* context;  // of ONNX Runtime
  Dtype dtype;                      // of a and b
  bool workspace = true;            // whether it may use scratch memory
};

GemmCudaKernel::GemmCudaKernel(const Kernel& kernel, const Library& library, const OrtKernelInfo* info)
    : FusedKernel(kernel),
      gemm_(kernel.meaning.As<Gemm>()),
      driver_(library.driver()),
      launcher_(kernel, library),
      b_is_constant_(WeightIsConstant(gemm_, info)),
      few_rows_(kernel, launcher_, b_is_constant_),
      states_shapes_(StatedShape(info, gemm_.a) && StatedShape(info, gemm_.b)),
      api_(FindCublaslt()),
      allocator_(info) {
  if (gemm_.packed) packed_.emplace(kernel, launcher_);
  if (gemm_.activates_apart()) large_.emplace(kernel, driver_, launcher_);
  Context context = nullptr;
  driver_.Check(driver_.cuCtxGetCurrent(&context), "cannot ask for the CUDA context");
  if (context != nullptr) HandleOf(context, api_);
  Algorithms::Get();  // a damaged file shows now
}

std::optional<std::string> GemmCudaKernel::Obstacle() {
  if (cublaslt::Expected()) return std::nullopt;
  return "no libcublasLt.so.12 or .13 is found, which ONNX Runtime's CUDA provider needs as well; "
         "products run as ONNX Runtime runs them";
}

bool GemmCudaKernel::RunsWithoutFatbin(const Kernel& kernel) {
  const Gemm& gemm = kernel.meaning.As<Gemm>();
  return !gemm.packed && !gemm.activates_apart();
}

void GemmCudaKernel::Compute(OrtKernelContext* ort_context) const {
  Shape shapes[Gemm::kMaxInputs];
  const void* inputs[Gemm::kMaxInputs] = {};
  for (std::size_t k = 0; k < gemm_.inputs.size(); ++k) inputs[k] = InputTensor(ort_context, k, &shapes[k]);
  const Product product = MakeProduct(gemm_, shapes);
  void* outputs[Gemm::kMaxOutputs] = {};
  for (std::size_t k = 0; k < gemm_.outputs.size(); ++k) outputs[k] = OutputTensor(ort_context, k, product.output);
  if (product.output.count() == 0) return;
  const void* const a = Move(inputs[gemm_.a], product.first_a, Size(gemm_.operands()));
  Operands operands = {a, inputs[gemm_.b], gemm_.bias ? inputs[*gemm_.bias] : nullptr,
                       gemm_.residual ? inputs[*gemm_.residual] : nullptr, nullptr};
  const auto [stream, context] = EnterStream(driver_, ort_context);
  int capturing = 0;
  driver_.Check(driver_.cuStreamIsCapturing(stream, &capturing), "cannot ask whether the stream is capturing");
  const bool tf32 = gemm_.operands() == Dtype::kFloat32 && UsesTf32(ort_context);
  const std::lock_guard<std::mutex> lock(mutex_);
  Call call{product, operands,       stream,      HandleOf(context, api_), context, &shapes[gemm_.a],
            tf32,    capturing != 0, ort_context, gemm_.operands()};
  if (packed_) {
    const void* const zeros = gemm_.packed->zeros ? inputs[*gemm_.packed->zeros] : nullptr;
    return RunOfPacked(&call, {operands.b, inputs[gemm_.packed->scales], zeros}, outputs);
  }
  if (!RunParts(call, outputs)) RunWidened(call, shapes, outputs);
}

void GemmCudaKernel::RunOfPacked(Call* call, const PackedWeight& weight, void* const* outputs) const {
  if (RunPacked(*call, weight, outputs)) return;
  const Product& product = call->product;
  const std::int64_t columns = product.n * static_cast<std::int64_t>(gemm_.outputs.size());
  CallScratch scratch(allocator_, call->context);
  void* const floats = scratch.Of(static_cast<std::size_t>(columns * product.k) * Size(gemm_.dtype()));
  if (product.k > 0) packed_->Widen(columns, product.k, weight, floats, call->stream);
  call->operands.b = floats;
  if (!gemm_.gate) {
    RunParts(*call, outputs);
    return;
  }
  CallScratch of_halves(allocator_, call->context);
  void* const halves = of_halves.Of(static_cast<std::size_t>(product.m * product.n) * Size(gemm_.dtype()));
  RunParts(*call, &halves);
  packed_->Gate(product.m, product.n / 2, halves, outputs[0], call->stream);
}

// Reads the codes, a launch for each part. False where rows are many, or no entry point fits.
bool GemmCudaKernel::RunPacked(const Call& call, const PackedWeight& weight, void* const* outputs) const {
  const Product& product = call.product;
  if (product.batch_dims > 0 || Alignment(weight.scales) < kBiasAlignment) return false;
  if (weight.zeros != nullptr && Alignment(weight.zeros) < kBiasAlignment) return false;
  for (std::size_t k = 0; k < gemm_.outputs.size(); ++k) {
    if (outputs[k] == nullptr) continue;
    const std::int64_t first = static_cast<std::int64_t>(k) * product.n;
    Operands at = call.operands;
    if (at.bias != nullptr) at.bias = Move(at.bias, first, Size(gemm_.dtype()));
    at.output = outputs[k];
    const PackedWeight part = weight.From(gemm_, first, product.k);
    const std::int64_t columns = !gemm_.gate ? product.n : product.n / 2;
    if (!packed_->Run({product.m, columns, product.k, b_is_constant_}, at, part, call.stream)) return false;
  }
  return true;
}

GemmCudaKernel::~GemmCudaKernel() {
  if (widened_b_ != nullptr) allocator_.get()->Free(allocator_.get(), widened_b_);
}

void GemmCudaKernel::RunWidened(const Call& call, const Shape* shapes, void* const* outputs) const {
  if (kernel().variants.empty()) {
    throw Error("cuBLASLt does not multiply 8-bit floats here, and nothing in the artifact widens them on this GPU");
  }
  CallScratch of_a(allocator_, call.context);
  CallScratch of_b(allocator_, call.context);
  const auto widened = [&](const void* codes, std::size_t count, CallScratch* scratch) {
    void* const numbers = scratch->Of(count * Size(Dtype::kFloat16));
    Widen(codes, numbers, count, call.stream);
    return numbers;
  };
  Call wide = call;
  wide.dtype = Dtype::kFloat16;
  wide.operands.a = widened(call.operands.a, shapes[gemm_.a].count(), &of_a);
  const std::size_t count = shapes[gemm_.b].count();
  const bool keeps = widened_b_ != nullptr || (b_is_constant_ && !call.capturing && count > 0);
  wide.operands.b = keeps ? WidenedConstant(call, count) : widened(call.operands.b, count, &of_b);
  RunParts(wide, outputs);
}

// Calls on other streams may read it from now on, so its kernel has to end first.
const void* GemmCudaKernel::WidenedConstant(const Call& call, std::size_t count) const {
  if (widened_b_ != nullptr) return widened_b_;
  OrtAllocator* const allocator = allocator_.get();
  const std::size_t bytes = count * Size(Dtype::kFloat16);
  void* const numbers = allocator->Alloc(allocator, bytes);
  if (numbers == nullptr) throw Error("no memory for a weight of " + std::to_string(bytes) + " bytes on the GPU");
  Event done = nullptr;
  try {
    Widen(call.operands.b, numbers, count, call.stream);
    driver_.Check(driver_.cuEventCreate(&done, 0), "cannot make an event");
    driver_.Check(driver_.cuEventRecord(done, call.stream), "cannot record an event");
    driver_.Check(driver_.cuEventSynchronize(done), "widening a weight failed");
  } catch (const Error&) {
    if (done != nullptr) driver_.cuEventDestroy(done);
    allocator->Free(allocator, numbers);
    throw;
  }
  driver_.cuEventDestroy(done);
  widened_b_ = numbers;
  return numbers;
}

void GemmCudaKernel::Widen(const void* codes, void* numbers, std::size_t count, Stream stream) const {
  if (count == 0) return;
  WidenCodesParams params{codes, numbers, count};
  const std::uint64_t of_block = std::uint64_t{kernel().variants[0].threads} * kWidenedCodes;
  const std::uint64_t blocks = CeilDiv(count, of_block);
  if (blocks > std::numeric_limits<std::int32_t>::max()) throw Error("a product's operand is too large to be widened");
  launcher_.Launch(0, static_cast<unsigned>(blocks), reinterpret_cast<unsigned char*>(&params), stream);
}

// Each part is a product of its own, as ONNX Runtime allocates the outputs where it likes. One alone fills the GPU
// badly; in a CUDA graph they are branches, so that one begins while another ends. Outside of one, the host's time for
// the events would cost more.
bool GemmCudaKernel::RunParts(const Call& call, void* const* outputs) const {
  const std::size_t parts = gemm_.outputs.size();
  if (parts > 1 && !call.capturing && branches_ == nullptr) branches_ = BranchesOf(call.stream, driver_);
  const Fork fork(call.capturing && parts > 1 ? branches_.get() : nullptr, call.stream, parts - 1);
  const std::size_t size = Size(gemm_.dtype());
  bool taken = true;
  for (std::size_t k = 0; k < parts && taken; ++k) {
    if (outputs[k] == nullptr) continue;
    Call part = call;
    const auto index = static_cast<std::int64_t>(k);
    part.operands.b = Move(call.operands.b, index * call.product.part_b, Size(call.dtype));
    if (call.operands.bias != nullptr) part.operands.bias = Move(call.operands.bias, index * call.product.n, size);
    part.operands.output = outputs[k];
    // Products side by side cannot share a workspace, which unaligned biases and sums over nothing ask for.
    const bool aligned = part.operands.bias == nullptr || Alignment(part.operands.bias) >= kBiasAlignment;
    part.workspace = k == 0 || !aligned || call.product.k == 0;
    if (!part.workspace) part.stream = fork.stream(k);
    taken = RunFewRows(part) || (large_ ? RunActivated(part) : RunBatch(part));
  }
  fork.Join();
  return taken;
}

bool GemmCudaKernel::RunFewRows(const Call& call) const {
  if (packed_ || call.dtype != gemm_.operands()) return false;  // codes that were widened are cuBLASLt's
  return few_rows_.Run(call.product, call.operands, call.stream);
}

bool GemmCudaKernel::RunActivated(const Call& call) const {
  if (large_->Run(call.product, call.operands, call.tf32, call.stream)) return true;
  if (!RunBatch(call)) return false;
  large_->Activate(call.operands.output, call.product.output.count(), call.stream);
  return true;
}

// cuBLASLt takes one batch dim: the innermost one, which is the longest where dims could be merged. Others are a loop.
bool GemmCudaKernel::RunBatch(const Call& call) const {
  const Product& product = call.product;
  if (product.k == 0) return RunWithoutDepth(call);
  const std::size_t outer = product.batch_dims > 0 ? product.batch_dims - 1 : 0;
  std::int64_t count = 1;
  for (std::size_t d = 0; d < outer; ++d) count *= product.batch[d].extent;
  const std::size_t read = Size(call.dtype);
  const std::size_t size = Size(gemm_.dtype());
  for (std::int64_t index = 0; index < count; ++index) {
    Operands at = call.operands;
    std::int64_t rest = index;
    for (std::size_t d = outer; d-- > 0; rest /= product.batch[d].extent) {
      const BatchDim& dim = product.batch[d];
      const std::int64_t i = rest % dim.extent;
      at.a = Move(at.a, i * dim.stride_a, read);
      at.b = Move(at.b, i * dim.stride_b, read);
      at.output = Move(at.output, i * dim.stride_d, size);
      if (at.residual != nullptr) at.residual = Move(at.residual, i * dim.stride_d, size);
    }
    if (!RunInner(call, product, at)) return false;
  }
  return true;
}

bool GemmCudaKernel::RunInner(const Call& call, const Product& product, const Operands& operands) const {
  const BatchDim inner = product.batch_dims > 0 ? product.batch[product.batch_dims - 1] : BatchDim{1, 0, 0, 0};
  if (std::max({product.m, product.n, product.k, inner.extent}) > std::numeric_limits<std::int32_t>::max()) {
    throw Error("a product with a dim above 2^31 cannot run on cuBLASLt");
  }
  Operands at = operands;
  // Where a vector of bias is not aligned, epilogues may not take it; initializers always are.
  CallScratch scratch(allocator_, call.context);
  const bool copies_bias = at.bias != nullptr && Alignment(at.bias) < kBiasAlignment;
  if (copies_bias) {
    const std::size_t bytes = static_cast<std::size_t>(product.n) * Size(gemm_.dtype());
    void* const copy = scratch.Of(bytes);
    driver_.Check(driver_.cuMemcpyDtoDAsync(reinterpret_cast<std::uintptr_t>(copy),
                                            reinterpret_cast<std::uintptr_t>(at.bias), bytes, call.stream),
                  "cannot copy a bias");
    at.bias = copy;
  }
  const void* c = at.residual == nullptr ? at.output : at.residual;
  const PlanKey key = {product.m,       product.n,
                       product.k,       inner.extent,
                       inner.stride_a,  inner.stride_b,
                       inner.stride_d,  product.ldb,
                       Alignment(at.a), Alignment(at.b),
                       Alignment(c),    Alignment(at.output),
                       call.tf32,       call.workspace && !copies_bias,
                       call.dtype};
  return RunPlan(call, key, at, &scratch);
}

bool GemmCudaKernel::RunPlan(const Call& call, const PlanKey& key, const Operands& operands,
                             CallScratch* scratch) const {
  if (std::find(refused_.begin(), refused_.end(), key) != refused_.end()) return false;
  try {
    Plan& plan = PlanFor(call, key, operands);
    plan.Run(call.handle, operands, [&](std::size_t bytes) { return scratch->Of(bytes); }, call.stream);
  } catch (const cublaslt::Refusal&) {
    if (key.operands != Dtype::kFloat8E4M3) throw;
    refused_.push_back(key);
    return false;
  }
  return true;
}

// A sum over nothing is zero, which cuBLASLt does not take: a product of one column and one row of zeros is the same.
bool GemmCudaKernel::RunWithoutDepth(const Call& call) const {
  const std::size_t size = Size(call.dtype);
  Product product = call.product;
  std::int64_t rows = product.m;
  for (std::size_t d = 0; d < product.batch_dims; ++d) rows *= product.batch[d].extent;
  const std::size_t bytes = static_cast<std::size_t>(std::max(rows, product.n)) * size;
  CallScratch scratch(allocator_, call.context);
  void* const zeros = scratch.Of(bytes);
  driver_.Check(driver_.cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(zeros), 0, bytes, call.stream),
                "cannot clear memory for a sum over nothing");
  product.m = rows;
  product.k = 1;
  product.ldb = gemm_.transpose_b ? 1 : product.n;
  product.batch_dims = 0;
  Operands operands = call.operands;
  operands.a = operands.b = zeros;
  return RunInner(call, product, operands);
}

Plan& GemmCudaKernel::PlanFor(const Call& call, const PlanKey& key, const Operands& operands) const {
  for (const auto& plan : plans_) {
    if (plan->key() == key) return *plan;
  }
  auto plan = std::make_unique<Plan>(api_, gemm_, key);
  CallScratch scratch(allocator_, call.context);
  const ProductCall chosen_for = {driver_,        api_,
                                  call.handle,    call.device,
                                  call.stream,    call.capturing,
                                  states_shapes_, plans_.empty(),
                                  *call.a,        [&](std::size_t bytes) { return scratch.Of(bytes); }};
  if (!loaded_ && !states_shapes_ && !call.capturing && !Algorithms::Get().tunes()) {
    loaded_ = true;
    LoadForSizes(chosen_for, NameOfGpu(driver_), operands, gemm_, key);
  }
  Choose(chosen_for, operands, plan.get());
  plans_.push_back(std::move(plan));
  return *plans_.back();
}

}  // namespace onnxopt::cuda
