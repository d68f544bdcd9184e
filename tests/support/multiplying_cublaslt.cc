// A stand-in for libcublasLt.so.13 that multiplies on the CPU: matrices of one dtype that are not transposed, one at a
// time. The file `products` of the folder that ONNXOPT_EMULATION names gets a line "<rows> <columns> <depth>" for each.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kNotSupported = 15;
constexpr int kFloat32 = 0;  // cudaDataType_t
constexpr int kFloat16 = 2;
constexpr int kBfloat16 = 14;
constexpr std::size_t kCandidateBytes = 8 * 8 + 8 + 4 + 4 + 4 * 4;

// In columns, each `distance` elements behind the one before it.
struct Layout {
  int type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t distance;

  std::size_t At(std::uint64_t row, std::uint64_t column) const {
    return column * static_cast<std::uint64_t>(distance) + row;
  }
};

const Layout& Of(const void* layout) { return *static_cast<const Layout*>(layout); }

float FromBits(std::uint32_t bits) {
  float number = 0;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

float Read(const Layout& layout, const void* data, std::size_t at) {
  if (layout.type == kFloat16) return static_cast<float>(static_cast<const _Float16*>(data)[at]);
  if (layout.type == kBfloat16) return FromBits(std::uint32_t{static_cast<const std::uint16_t*>(data)[at]} << 16);
  return static_cast<const float*>(data)[at];
}

void Write(const Layout& layout, void* data, std::size_t at, float number) {
  if (layout.type == kFloat16) {
    static_cast<_Float16*>(data)[at] = static_cast<_Float16>(number);
  } else if (layout.type == kBfloat16) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &number, sizeof(bits));
    bits += 0x7fffU + (bits >> 16 & 1U);
    static_cast<std::uint16_t*>(data)[at] = static_cast<std::uint16_t>(bits >> 16);
  } else {
    static_cast<float*>(data)[at] = number;
  }
}

int Some(void** made) { return *made = reinterpret_cast<void*>(8), 0; }

void Note(const Layout& result, std::uint64_t depth) {
  const char* const folder = std::getenv("ONNXOPT_EMULATION");
  std::FILE* const file = std::fopen((std::string(folder != nullptr ? folder : ".") + "/products").c_str(), "a");
  if (file == nullptr) return;
  std::fprintf(file, "%d %d %d\n", static_cast<int>(result.columns), static_cast<int>(result.rows),
               static_cast<int>(depth));
  std::fclose(file);
}

}  // namespace

extern "C" {

int cublasLtCreate(void** handle) { return Some(handle); }
int cublasLtDestroy(void*) { return 0; }
std::size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusName(int) { return "CUBLAS_STATUS_OF_THE_TEST"; }
int cublasLtMatmulDescCreate(void** made, int, int) { return Some(made); }
int cublasLtMatmulDescDestroy(void*) { return 0; }
int cublasLtMatmulDescSetAttribute(void*, int, const void*, std::size_t) { return 0; }
int cublasLtMatrixLayoutCreate(void** made, int type, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t distance) {
  return *made = new Layout{type, rows, columns, distance}, 0;
}
int cublasLtMatrixLayoutDestroy(void* layout) { return delete static_cast<Layout*>(layout), 0; }
int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, std::size_t) { return kNotSupported; }
int cublasLtMatmulPreferenceCreate(void** made) { return Some(made); }
int cublasLtMatmulPreferenceDestroy(void*) { return 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, std::size_t) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int wanted, void* candidates,
                                   int* found) {
  std::memset(candidates, 0, static_cast<std::size_t>(wanted) * kCandidateBytes);
  return *found = 1, 0;
}
int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const void*, void*) { return kNotSupported; }
int cublasLtMatmul(void*, void*, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
                   const void*, const void*, void*, void* d, void* d_layout, const void*, void*, std::size_t, void*) {
  const Layout &left = Of(a_layout), &right = Of(b_layout), &result = Of(d_layout);
  if (left.columns != right.rows || left.rows != result.rows || right.columns != result.columns) return kNotSupported;
  Note(result, left.columns);
  for (std::uint64_t column = 0; column < result.columns; ++column) {
    for (std::uint64_t row = 0; row < result.rows; ++row) {
      float sum = 0;
      for (std::uint64_t k = 0; k < left.columns; ++k) {
        sum += Read(left, a, left.At(row, k)) * Read(right, b, right.At(k, column));
      }
      Write(result, d, result.At(row, column), sum * *static_cast<const float*>(alpha));
    }
  }
  return 0;
}
}
