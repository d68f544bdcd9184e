// Device memory that products and convolutions work in: one buffer a stream, from ONNX Runtime's allocator.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/launch/allocator.h"
#include "cuda/launch/driver.h"

namespace onnxopt::cuda {

// What cuBLAS itself takes on Hopper; algorithms that want more are not considered.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20U;

// Device memory. Work on one stream runs in order, so everything on it shares one.
class Workspace {
 public:
  // Throws Error if there is no memory.
  Workspace(std::shared_ptr<const Allocator> allocator, std::size_t bytes);
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const Allocator> allocator_;
  std::size_t bytes_;
  void* data_;
};

enum class Purpose : std::uint8_t {
  kScratch,  // of one product or convolution
  kInside,   // what one convolution of a block hands to the next
};

// The workspace of a stream, of at least so many bytes; a larger one takes the place of one that is too small. Where
// `create` is false, nullptr if it has none yet. Lives as long as somebody holds it: kernels keep what they used, as
// captured CUDA graphs go on using its address.
std::shared_ptr<const Workspace> WorkspaceOf(Stream stream, const std::shared_ptr<const Allocator>& allocator,
                                             bool create, std::size_t bytes = kWorkspaceBytes,
                                             Purpose purpose = Purpose::kScratch);

}  // namespace onnxopt::cuda
