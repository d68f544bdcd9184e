// Device memory that one call works in, from ONNX Runtime's allocator.
#pragma once

#include <vector>

#include "cuda/launch/allocator.h"

namespace onnxopt::cuda {

// Memory that a kernel's launches share until the last of them has ended. It is given back when the call has been
// enqueued: what follows on the call's stream may use it then, and ONNX Runtime's arena makes other streams wait first.
// So a session takes no more of it than what runs at once needs, on however many streams.
class CallScratch {
 public:
  CallScratch(const Allocator& allocator, const OrtKernelContext* call) : allocator_(allocator), call_(call) {}
  CallScratch(const CallScratch&) = delete;
  CallScratch& operator=(const CallScratch&) = delete;
  ~CallScratch();

  // At least so many bytes, or nullptr for 0. The same memory again where it is large enough. Throws Error if there is
  // none.
  void* Of(std::size_t bytes);

 private:
  const Allocator& allocator_;
  const OrtKernelContext* call_;
  std::vector<void*> taken_;  // the last one is the largest
  std::size_t bytes_ = 0;     // of that one
};

}  // namespace onnxopt::cuda
