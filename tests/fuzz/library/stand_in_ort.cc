#include "stand_in_ort.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace onnxopt::stand_in {

int failing_allocation = 0;

namespace {

constexpr std::size_t kLeastOutput = 8;  // bytes: ONNX Runtime's allocations are larger

struct Status {
  std::string text;
};

OrtStatus* Fail(const std::string& text) { return reinterpret_cast<OrtStatus*>(new Status{text}); }

const TypeShape* Of(const OrtTensorTypeAndShapeInfo* info) { return reinterpret_cast<const TypeShape*>(info); }
TypeShape* Of(OrtTensorTypeAndShapeInfo* info) { return reinterpret_cast<TypeShape*>(info); }
const Call* Of(const OrtKernelContext* context) { return reinterpret_cast<const Call*>(context); }

OrtStatus* GetOutput(OrtKernelContext* context, std::size_t k, const std::int64_t* dims, std::size_t rank,
                     OrtValue** out) noexcept {
  auto* call = reinterpret_cast<Call*>(context);
  if (k >= call->output_types.size()) return Fail("no such output");
  call->outputs.resize(call->output_types.size());
  std::size_t bytes = ElementBytes(call->output_types[k]);
  for (std::size_t d = 0; d < rank; ++d) {
    if (dims[d] < 0 || __builtin_mul_overflow(bytes, static_cast<std::size_t>(dims[d]), &bytes)) {
      return Fail("a tensor cannot have these dims");
    }
  }
  if (bytes > kMostOutputBytes) return Fail("out of memory for an output");
  call->outputs[k] = {call->output_types[k], {dims, dims + rank}, Memory(bytes, kLeastOutput)};
  *out = reinterpret_cast<OrtValue*>(&call->outputs[k]);
  return nullptr;
}

void* Allocate(OrtAllocator* /*allocator*/, std::size_t bytes) {
  const bool fails = failing_allocation > 0 && --failing_allocation == 0;
  return fails || bytes > kMaxBytes ? nullptr : std::malloc(bytes);
}

void Release(OrtAllocator* /*allocator*/, void* data) { std::free(data); }

const OrtMemoryInfo* Describe(const OrtAllocator* /*allocator*/) { return nullptr; }

OrtAllocator allocator{ORT_API_VERSION, Allocate, Release, Describe, nullptr};

void FillShapes(OrtApi* api) {
  api->GetDimensionsCount = [](const OrtTensorTypeAndShapeInfo* info, std::size_t* out) noexcept -> OrtStatus* {
    *out = Of(info)->dims.size();
    return nullptr;
  };
  api->GetDimensions = [](const OrtTensorTypeAndShapeInfo* info, std::int64_t* out,
                          std::size_t n) noexcept -> OrtStatus* {
    if (n > 0) std::memcpy(out, Of(info)->dims.data(), n * sizeof(*out));
    return nullptr;
  };
  api->ReleaseTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo* info) noexcept { delete Of(info); };
  api->GetTensorElementType = [](const OrtTensorTypeAndShapeInfo* info,
                                 ONNXTensorElementDataType* out) noexcept -> OrtStatus* {
    *out = Of(info)->element;
    return nullptr;
  };
}

void FillCalls(OrtApi* api) {
  api->KernelContext_GetInput = [](const OrtKernelContext* context, std::size_t k,
                                   const OrtValue** out) noexcept -> OrtStatus* {
    if (k >= Of(context)->inputs.size()) return Fail("no such input");
    *out = reinterpret_cast<const OrtValue*>(&Of(context)->inputs[k]);
    return nullptr;
  };
  api->KernelContext_GetOutput = GetOutput;
  api->GetTensorTypeAndShape = [](const OrtValue* value, OrtTensorTypeAndShapeInfo** out) noexcept -> OrtStatus* {
    const auto* tensor = reinterpret_cast<const Tensor*>(value);
    *out = reinterpret_cast<OrtTensorTypeAndShapeInfo*>(new TypeShape{tensor->element, tensor->dims});
    return nullptr;
  };
  api->GetTensorMutableData = [](OrtValue* value, void** out) noexcept -> OrtStatus* {
    *out = reinterpret_cast<Tensor*>(value)->memory.data();
    return nullptr;
  };
  api->KernelContext_ParallelFor = [](const OrtKernelContext*, void (*body)(void*, std::size_t), std::size_t total,
                                      std::size_t, void* data) noexcept -> OrtStatus* {
    for (std::size_t k = 0; k < total; ++k) body(data, k);
    return nullptr;
  };
  api->KernelContext_GetGPUComputeStream = [](const OrtKernelContext* context, void** out) noexcept -> OrtStatus* {
    *out = Of(context)->stream;
    return nullptr;
  };
  api->KernelContext_GetResource = [](const OrtKernelContext*, int, int, void** out) noexcept -> OrtStatus* {
    *out = nullptr;
    return nullptr;
  };
}

void FillNodes(OrtApi* api) {
  api->KernelInfo_GetInputCount = [](const OrtKernelInfo* info, std::size_t* out) noexcept -> OrtStatus* {
    *out = reinterpret_cast<const Node*>(info)->inputs;
    return nullptr;
  };
  api->KernelInfo_GetOutputCount = [](const OrtKernelInfo* info, std::size_t* out) noexcept -> OrtStatus* {
    *out = reinterpret_cast<const Node*>(info)->outputs;
    return nullptr;
  };
  api->KernelInfo_GetInputTypeInfo = [](const OrtKernelInfo* info, std::size_t k,
                                        OrtTypeInfo** out) noexcept -> OrtStatus* {
    const Call* const stated = reinterpret_cast<const Node*>(info)->stated;
    *out = nullptr;
    if (stated == nullptr) return nullptr;  // of a graph that says nothing of its inputs
    const Tensor& input = stated->inputs[k];
    *out = reinterpret_cast<OrtTypeInfo*>(new TypeShape{input.element, input.dims});
    return nullptr;
  };
  api->KernelInfo_GetOutputTypeInfo = [](const OrtKernelInfo*, std::size_t, OrtTypeInfo** out) noexcept -> OrtStatus* {
    *out = nullptr;  // the graph says nothing of its outputs
    return nullptr;
  };
  api->CastTypeInfoToTensorInfo = [](const OrtTypeInfo* info,
                                     const OrtTensorTypeAndShapeInfo** out) noexcept -> OrtStatus* {
    *out = reinterpret_cast<const OrtTensorTypeAndShapeInfo*>(info);
    return nullptr;
  };
  api->ReleaseTypeInfo = [](OrtTypeInfo* info) noexcept { delete reinterpret_cast<TypeShape*>(info); };
  api->KernelInfoGetConstantInput_tensor = [](const OrtKernelInfo*, std::size_t, int* constant,
                                              const OrtValue** out) noexcept -> OrtStatus* {
    *constant = std::getenv("CONSTANT_INPUTS") != nullptr;
    *out = nullptr;
    return nullptr;
  };
  api->KernelInfoGetAllocator = [](const OrtKernelInfo*, OrtMemType, OrtAllocator** out) noexcept -> OrtStatus* {
    *out = &allocator;
    return nullptr;
  };
  api->ReleaseAllocator = [](OrtAllocator*) noexcept {};
  api->KernelContext_GetScratchBuffer = [](const OrtKernelContext*, const OrtMemoryInfo*, std::size_t bytes,
                                           void** out) noexcept -> OrtStatus* {
    *out = Allocate(&allocator, bytes);
    return *out == nullptr ? Fail("no memory") : nullptr;
  };
}

OrtApi Make() {
  OrtApi api{};
  api.CreateStatus = [](OrtErrorCode, const char* text) noexcept { return Fail(text); };
  api.GetErrorMessage = [](const OrtStatus* status) noexcept {
    return reinterpret_cast<const Status*>(status)->text.c_str();
  };
  api.ReleaseStatus = [](OrtStatus* status) noexcept { delete reinterpret_cast<Status*>(status); };
  FillShapes(&api);
  FillCalls(&api);
  FillNodes(&api);
  return api;
}

}  // namespace

namespace {

#ifdef ONNXOPT_GUARD_PAGES
constexpr std::size_t kPage = 4096;

// Pages in front of the one that nothing may touch.
std::size_t Pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage; }

unsigned char* NewMemory(std::size_t bytes) {
  const std::size_t usable = Pages(bytes) * kPage;
  void* const pages = mmap(nullptr, usable + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED || mprotect(static_cast<char*>(pages) + usable, kPage, PROT_NONE) != 0) std::abort();
  return static_cast<unsigned char*>(pages) + usable - bytes;
}

void DeleteMemory(unsigned char* data, std::size_t bytes) {
  if (data != nullptr) munmap(data + bytes - Pages(bytes) * kPage, (Pages(bytes) + 1) * kPage);
}
#else
unsigned char* NewMemory(std::size_t bytes) {
  auto* const data = static_cast<unsigned char*>(std::calloc(bytes, 1));
  if (data == nullptr) std::abort();
  return data;
}

void DeleteMemory(unsigned char* data, std::size_t /*bytes*/) { std::free(data); }
#endif

}  // namespace

Memory::Memory(std::size_t bytes, std::size_t least)
    : data_(NewMemory(std::max(bytes, least))), bytes_(bytes), allocated_(std::max(bytes, least)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(allocated_, other.allocated_);
  return *this;
}

Memory::~Memory() { DeleteMemory(data_, allocated_); }

const OrtApi* Api() {
  static const OrtApi api = Make();
  return &api;
}

const OrtApiBase* Base() {
  static const OrtApiBase base{[](std::uint32_t) noexcept { return Api(); }, []() noexcept { return "1.21.0"; }};
  return &base;
}

std::size_t ElementBytes(ONNXTensorElementDataType element) {
  switch (element) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return 1;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16:
      return 2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32:
      return 4;
    default:
      return 8;
  }
}

std::string Text(OrtStatus* status) {
  if (status == nullptr) return "";
  const std::string text = Api()->GetErrorMessage(status);
  Api()->ReleaseStatus(status);
  return text.empty() ? "an error without a message" : text;
}

}  // namespace onnxopt::stand_in
