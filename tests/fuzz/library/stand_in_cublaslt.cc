// A stand-in for libcublasLt.so.13 that accepts every call and multiplies nothing. FAKE_CUBLASLT_FAILS names a function
// that fails.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kNotSupported = 15;
constexpr std::size_t kCandidateBytes = 8 * 8 + 8 + 4 + 4 + 4 * 4;

int Answer(const char* function) {
  const char* failing = std::getenv("FAKE_CUBLASLT_FAILS");
  return failing != nullptr && std::strcmp(failing, function) == 0 ? kNotSupported : 0;
}

template <typename T>
int Make(const char* function, T** made) {
  *made = reinterpret_cast<T*>(8);
  return Answer(function);
}

}  // namespace

extern "C" {

int cublasLtCreate(void** handle) { return Make("cublasLtCreate", handle); }
int cublasLtDestroy(void*) { return 0; }
std::size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusName(int) { return "CUBLAS_STATUS_OF_THE_TEST"; }
int cublasLtMatmulDescCreate(void** made, int, int) { return Make("cublasLtMatmulDescCreate", made); }
int cublasLtMatmulDescDestroy(void*) { return 0; }
int cublasLtMatmulDescSetAttribute(void*, int, const void*, std::size_t) {
  return Answer("cublasLtMatmulDescSetAttribute");
}
int cublasLtMatrixLayoutCreate(void** made, int, std::uint64_t, std::uint64_t, std::int64_t) {
  return Make("cublasLtMatrixLayoutCreate", made);
}
int cublasLtMatrixLayoutDestroy(void*) { return 0; }
int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, std::size_t) {
  return Answer("cublasLtMatrixLayoutSetAttribute");
}
int cublasLtMatmulPreferenceCreate(void** made) { return Make("cublasLtMatmulPreferenceCreate", made); }
int cublasLtMatmulPreferenceDestroy(void*) { return 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, std::size_t) {
  return Answer("cublasLtMatmulPreferenceSetAttribute");
}
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int wanted, void* candidates,
                                   int* found) {
  std::memset(candidates, 0, static_cast<std::size_t>(wanted) * kCandidateBytes);
  *found = 1;
  return Answer("cublasLtMatmulAlgoGetHeuristic");
}
int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const void*, void* candidate) {
  std::memset(candidate, 0, kCandidateBytes);
  return Answer("cublasLtMatmulAlgoCheck");
}
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                   void*, void*, const void*, void*, std::size_t, void*) {
  return Answer("cublasLtMatmul");
}
}
