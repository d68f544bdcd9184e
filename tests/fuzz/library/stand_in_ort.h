// A stand-in for ONNX Runtime: as much of its C API as custom ops call, with tensors whose memory ends where they do,
// so that a sanitizer, or a page that nothing may touch, sees every access beyond one.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace onnxopt::stand_in {

// Memory of a tensor, zeroed at first.
class Memory {
 public:
  Memory() = default;
  // least: bytes that are there in any case.
  explicit Memory(std::size_t bytes, std::size_t least = 0);
  Memory(Memory&& other) noexcept : data_(other.data_), bytes_(other.bytes_), allocated_(other.allocated_) {
    other.data_ = nullptr;
  }
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  unsigned char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  unsigned char* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t allocated_ = 0;
};

struct Tensor {
  ONNXTensorElementDataType element;
  std::vector<std::int64_t> dims;
  Memory memory;
};

// The type of a tensor of the graph.
struct TypeShape {
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> dims;
};

// A call of one node. outputs: made when the op asks for them; their elements are those of output_types.
struct Call {
  std::vector<Tensor> inputs;
  std::vector<ONNXTensorElementDataType> output_types;
  std::vector<Tensor> outputs;
  void* stream = nullptr;
};

// stated: a call whose shapes the graph states, or nullptr.
struct Node {
  std::size_t inputs;
  std::size_t outputs;
  const Call* stated = nullptr;
};

inline OrtKernelContext* Context(Call* call) { return reinterpret_cast<OrtKernelContext*>(call); }
inline OrtKernelInfo* Info(Node* node) { return reinterpret_cast<OrtKernelInfo*>(node); }

const OrtApi* Api();
const OrtApiBase* Base();

// Bytes that an output and the device memory of a call may have together; more is out of memory.
constexpr std::size_t kMaxBytes = std::size_t{1} << 28U;
// Of one output: more takes sanitizers longer than a mutant may run.
constexpr std::size_t kMostOutputBytes = std::size_t{1} << 24U;

// Which allocation of device memory fails, counted from 1 on; 0: none.
extern int failing_allocation;

// Bytes of an element.
std::size_t ElementBytes(ONNXTensorElementDataType element);

// Message of a status, empty for nullptr; releases it.
std::string Text(OrtStatus* status);

}  // namespace onnxopt::stand_in
