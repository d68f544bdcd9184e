#include "cuda/launch/counters.h"

#include <algorithm>

namespace onnxopt::cuda {
namespace {

constexpr std::size_t kMin = 64;                           // counters that are made at once
const auto kStreamOfThread = reinterpret_cast<Stream>(2);  // CU_STREAM_PER_THREAD

}  // namespace

// Device memory, which is given back in its context: a kernel may end on a thread that has called CUDA never before.
class Counters::Memory {
 public:
  Memory(const Driver& driver, std::uintptr_t data, Context context)
      : driver_(driver), data_(data), context_(context) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    Context previous = nullptr;
    const bool enters = driver_.cuCtxGetCurrent(&previous) == kSuccess && previous != context_;
    if (enters) driver_.cuCtxSetCurrent(context_);
    driver_.cuMemFree(data_);
    if (enters) driver_.cuCtxSetCurrent(previous);
  }

 private:
  const Driver& driver_;
  std::uintptr_t data_;
  Context context_;
};

unsigned* Counters::Of(Stream stream, std::size_t count) const {
  if (stream == kStreamOfThread) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto match = of_streams_.find(stream);
  if (match != of_streams_.end() && match->second.count >= count) return match->second.first;
  return Make(stream, count);
}

unsigned* Counters::Make(Stream stream, std::size_t count) const {
  int capturing = 0;
  driver_.Check(driver_.cuStreamIsCapturing(stream, &capturing), "cannot ask whether the stream is capturing");
  if (capturing != 0) return nullptr;
  Context context = nullptr;
  driver_.Check(driver_.cuCtxGetCurrent(&context), "cannot ask for the CUDA context");
  count = std::max(count, kMin);
  std::uintptr_t data = 0;
  if (driver_.cuMemAlloc(&data, count * sizeof(unsigned)) != kSuccess) return nullptr;
  made_.push_back(std::make_shared<Memory>(driver_, data, context));
  driver_.Check(driver_.cuMemsetD8Async(data, 0, count * sizeof(unsigned), stream), "cannot set counters to 0");
  auto* const first = reinterpret_cast<unsigned*>(data);
  of_streams_[stream] = {first, count};
  return first;
}

}  // namespace onnxopt::cuda
