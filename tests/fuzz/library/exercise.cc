#include "exercise.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cuda/launch/library.h"
#include "program/programs/pointwise.h"
#include "registry/custom_op.h"
#include "registry/kinds.h"
#include "stand_in_gpu.h"
#include "support/ort.h"

namespace onnxopt::exercise {
namespace {

using stand_in::Tensor;

constexpr std::size_t kMostElements = std::size_t{1} << 22U;  // of one input
constexpr const char* kCuda = "CUDAExecutionProvider";

ONNXTensorElementDataType Element(Dtype dtype) { return static_cast<ONNXTensorElementDataType>(Row(dtype).element); }

// A value for every element that depends on its place and on the input's: no divisor is 0, no exponent large.
void Fill(Dtype dtype, std::size_t input, Tensor* tensor) {
  const std::size_t size = Size(dtype);
  const std::size_t count = tensor->memory.bytes() / size;
  std::uint64_t state = 0x9e3779b97f4a7c15U * (input + 1);
  for (std::size_t k = 0; k < count; ++k) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto number = static_cast<std::int64_t>(state >> 60U);  // 0 .. 15
    const double real = static_cast<double>(state >> 40U) / (1U << 22U) - 2;
    const std::int64_t whole = dtype == Dtype::kBool ? number & 1 : number % 7 + 1;
    std::uint64_t bits = static_cast<std::uint64_t>(whole);
    if (dtype == Dtype::kFloat16) {
      bits = 0x3000U + (state >> 50U) % 0x1000U + (static_cast<std::uint64_t>(number & 1) << 15U);
    } else if (dtype == Dtype::kBfloat16) {
      const auto narrow = static_cast<float>(real);
      std::memcpy(&bits, &narrow, sizeof(narrow));
      bits = (bits & 0xffffffffU) >> 16U;
    } else if (dtype == Dtype::kFloat32) {
      const auto narrow = static_cast<float>(real);
      std::memcpy(&bits, &narrow, sizeof(narrow));
    } else if (dtype == Dtype::kFloat64) {
      std::memcpy(&bits, &real, sizeof(real));
    }
    std::memcpy(tensor->memory.data() + k * size, &bits, size);
  }
}

bool MakeInputs(const Case& call, const std::vector<Dtype>& dtypes, stand_in::Call* made) {
  if (call.inputs.size() != dtypes.size()) return false;
  for (std::size_t k = 0; k < dtypes.size(); ++k) {
    std::size_t count = 1;
    for (const std::int64_t dim : call.inputs[k]) {
      if (dim < 0 || __builtin_mul_overflow(count, static_cast<std::size_t>(dim), &count)) return false;
    }
    if (count > kMostElements) return false;
    made->inputs.push_back({Element(dtypes[k]), call.inputs[k], stand_in::Memory(count * Size(dtypes[k]))});
    Fill(dtypes[k], k, &made->inputs.back());
  }
  return true;
}

// As ONNX Runtime creates a kernel, runs it twice and destroys it. The message where it fails.
std::string RunOp(const CustomOp& op, const Kernel& kernel, stand_in::Call* call) {
  stand_in::Node node{call->inputs.size(), kernel.outputs.size(), StatesShapes() ? call : nullptr};
  for (const Dtype dtype : kernel.outputs) call->output_types.push_back(Element(dtype));
  void* made = nullptr;
  std::string error = stand_in::Text(op.CreateKernelV2(&op, &Ort(), stand_in::Info(&node), &made));
  for (int run = 0; run < 2 && error.empty(); ++run) {
    error = stand_in::Text(op.KernelComputeV2(made, stand_in::Context(call)));
  }
  if (made != nullptr) op.KernelDestroy(made);
  return error;
}

}  // namespace

std::vector<Case> ReadCases(const nlohmann::json& file) {
  std::vector<Case> cases;
  const auto found = file.find("cases");
  if (found == file.end() || !found->is_object()) return cases;
  for (const auto& [name, calls] : found->items()) {
    for (const auto& call : calls) {
      try {
        cases.push_back({name, call.get<std::vector<Dims>>()});
      } catch (const nlohmann::json::exception&) {
        continue;
      }
    }
  }
  return cases;
}

bool HasCpuKernel(const Kernel& kernel) {
  if (kernel.meaning.Is<Program>()) {
    const Program& program = kernel.meaning.As<Program>();
    if (program.index && program.index->LooksUp()) return false;
  }
  return FindKind(kernel.kind)->HasCpuKernels();
}

Result RunOnCpu(const Kernel& kernel, const Case& call, const std::vector<Dtype>& inputs) {
  if (!HasCpuKernel(kernel)) return {};
  const CustomOp op(kernel, nullptr, nullptr);
  stand_in::Call made;
  if (!MakeInputs(call, inputs, &made)) return {"the case is not one of this kernel", {}};
  Result result;
  result.error = RunOp(op, kernel, &made);
  result.outputs = std::move(made.outputs);
  return result;
}

bool StatesShapes() {
  static const bool states = std::getenv("STATES_SHAPES") != nullptr;
  return states;
}

std::string RunOnGpu(const KernelFile& file, const Case& call) {
  std::unique_ptr<const cuda::Library> library;
  std::string problem;
  try {
    library = std::make_unique<const cuda::Library>(stand_in::Driver(), file.fatbin);
    for (const Kernel& kernel : file.kernels) {
      if (kernel.variants.empty()) continue;
      if (!file.fatbin.empty() && !library->RunsHere(kernel.variants[0].symbol, &problem)) return problem;
      break;
    }
  } catch (const Error& e) {
    return e.what();
  }
  for (const Kernel& kernel : file.kernels) {
    if (kernel.name != call.kernel) continue;
    if (file.fatbin.empty() && !FindKind(kernel.kind)->RunsWithoutFatbin(kernel)) return "no code";
    const CustomOp op(kernel, kCuda, library.get());
    stand_in::Call made;
    made.stream = reinterpret_cast<void*>(8);
    if (!MakeInputs(call, kernel.inputs, &made)) return "the case is not one of this kernel";
    return RunOp(op, kernel, &made);
  }
  return "";
}

bool Same(const Result& a, const Result& b) {
  const auto same = [](const Tensor& x, const Tensor& y) {
    return x.element == y.element && x.dims == y.dims &&
           std::memcmp(x.memory.data(), y.memory.data(), x.memory.bytes()) == 0;
  };
  return a.outputs.size() == b.outputs.size() &&
         std::equal(a.outputs.begin(), a.outputs.end(), b.outputs.begin(), same);
}

void Prepare(const std::string& folder) {
  if (InitOrt(stand_in::Base()) != nullptr) std::abort();
  if (folder.empty()) return;
  for (const char* name : {"/libcublasLt.so.13", "/libcudnn.so.9"}) {
    if (dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) std::abort();
  }
}

}  // namespace onnxopt::exercise
