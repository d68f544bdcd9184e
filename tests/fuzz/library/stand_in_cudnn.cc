// A stand-in for libcudnn.so.9 that accepts every call, computes nothing and offers two engines with one knob each.
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace {

constexpr int kHeuristicResults = 202;
constexpr int kConfigEngine = 300;
constexpr int kConfigKnobChoices = 302;
constexpr int kEngineIndex = 1301;

int Make(void** made) {
  *made = new char;
  return 0;
}

int Destroy(void* made) {
  delete static_cast<char*>(made);
  return 0;
}

}  // namespace

extern "C" {

std::size_t cudnnGetVersion() { return 91900; }
std::size_t cudnnGetCudartVersion() { return 13000; }
const char* cudnnGetErrorString(int) { return "CUDNN_STATUS_OF_THE_TEST"; }
int cudnnCreate(void** handle) { return Make(handle); }
int cudnnSetStream(void*, void*) { return 0; }
int cudnnBackendCreateDescriptor(int, void** descriptor) { return Make(descriptor); }
int cudnnBackendDestroyDescriptor(void* descriptor) { return Destroy(descriptor); }
int cudnnBackendFinalize(void*) { return 0; }
int cudnnBackendSetAttribute(void*, int, int, std::int64_t, const void*) { return 0; }
// An engine has another number whenever it is asked. Other attributes are 0, or have no values.
int cudnnBackendGetAttribute(void*, int name, int, std::int64_t, std::int64_t* count, void* values) {
  static std::atomic<std::int64_t> engine{0};
  if (name == kEngineIndex) *static_cast<std::int64_t*>(values) = ++engine;
  const bool one = name == kConfigEngine || name == kConfigKnobChoices || name == kEngineIndex;
  *count = name == kHeuristicResults ? 2 : one ? 1 : 0;
  return 0;
}
int cudnnBackendExecute(void*, void*, void*) { return 0; }
int cudnnCreateTensorDescriptor(void** tensor) { return Make(tensor); }
int cudnnDestroyTensorDescriptor(void* tensor) { return Destroy(tensor); }
int cudnnSetTensor4dDescriptorEx(void*, int, int, int, int, int, int, int, int, int) { return 0; }
int cudnnAddTensor(void*, const void*, void*, const void*, const void*, void*, void*) { return 0; }
int cudnnCreateActivationDescriptor(void** activation) { return Make(activation); }
int cudnnDestroyActivationDescriptor(void* activation) { return Destroy(activation); }
int cudnnSetActivationDescriptor(void*, int, int, double) { return 0; }
int cudnnActivationForward(void*, void*, const void*, void*, const void*, const void*, void*, void*) { return 0; }
int cudnnSetTensor(void*, void*, void*, const void*) { return 0; }
int cudnnCreateOpTensorDescriptor(void** op) { return Make(op); }
int cudnnDestroyOpTensorDescriptor(void* op) { return Destroy(op); }
int cudnnSetOpTensorDescriptor(void*, int, int, int) { return 0; }
int cudnnOpTensor(void*, void*, const void*, void*, const void*, const void*, void*, const void*, const void*, void*,
                  void*) {
  return 0;
}
}
