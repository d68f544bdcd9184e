// A stand-in for libcublasLt.so.13 that multiplies nothing. It touches both ends of every matrix of a product, so that
// a sanitizer finds those that lie elsewhere, and refuses dtypes that cuBLASLt has no products of. It refuses odd
// numbers of rows of 8-bit floats as late as it can. FAKE_CUBLASLT_FAILS names a function that fails.
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

constexpr int kFloat32 = 0;  // cudaDataType_t
constexpr int kFloat16 = 2;
constexpr int kFloat8 = 28;
constexpr int kBatchCount = 5;  // cublasLtMatrixLayoutAttribute_t
constexpr int kBatchStride = 6;

struct Layout {
  int type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t distance;
  std::int32_t count = 1;
  std::int64_t stride = 0;

  std::size_t size() const { return type == kFloat32 ? 4 : type == kFloat8 ? 1 : 2; }

  // Calls `touch` with the first and the last byte of each matrix.
  template <typename Touch>
  void Ends(char* data, Touch touch) const {
    for (std::int32_t k = 0; k < count; ++k) {
      char* const first = data + k * stride * static_cast<std::int64_t>(size());
      const std::uint64_t last = (columns - 1) * static_cast<std::uint64_t>(distance) + rows;
      touch(first);
      touch(first + last * size() - 1);
    }
  }

  void Read(const void* data) const {
    Ends(static_cast<char*>(const_cast<void*>(data)), [](const volatile char* at) { *at; });
  }
  void Write(void* data) const {
    Ends(static_cast<char*>(data), [](char* at) { *at = 0; });
  }
};

const Layout& Of(const void* layout) { return *static_cast<const Layout*>(layout); }

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
int cublasLtMatrixLayoutCreate(void** made, int type, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t distance) {
  const int answer = Answer("cublasLtMatrixLayoutCreate");
  if (answer == 0) *made = new Layout{type, rows, columns, distance};
  return answer;
}
int cublasLtMatrixLayoutDestroy(void* layout) {
  delete static_cast<Layout*>(layout);
  return 0;
}
int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, std::size_t size) {
  auto* const set = static_cast<Layout*>(layout);
  if (attribute == kBatchCount) std::memcpy(&set->count, value, size);
  if (attribute == kBatchStride) std::memcpy(&set->stride, value, size);
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
int cublasLtMatmul(void*, void*, const void*, const void* a, void* a_layout, const void* b, void* b_layout,
                   const void* beta, const void* c, void* c_layout, void* d, void* d_layout, const void*, void*,
                   std::size_t, void*) {
  const int read = Of(a_layout).type;
  const int written = Of(d_layout).type;
  const bool is_codes = read == kFloat8 && Of(b_layout).columns % 2 == 0;
  const bool widens = (read == kFloat16 && written == kFloat32) || (is_codes && written != kFloat8);
  if (Of(b_layout).type != read || (read != written && !widens)) return kNotSupported;
  Of(a_layout).Read(a);
  Of(b_layout).Read(b);
  if (*static_cast<const float*>(beta) != 0) Of(c_layout).Read(c);
  Of(d_layout).Write(d);
  return Answer("cublasLtMatmul");
}
}
