// A stand-in for libcublasLt.so.13 that multiplies on the CPU, with its batches, transposes and epilogues. The file
// `products` of the folder that ONNXOPT_EMULATION names gets a line "<rows> <columns> <depth>" for each product.
#include <cmath>
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
constexpr int kFloat8 = 28;
constexpr std::size_t kCandidateBytes = 8 * 8 + 8 + 4 + 4 + 4 * 4;

constexpr int kTransA = 3;  // cublasLtMatmulDescAttributes_t
constexpr int kTransB = 4;
constexpr int kEpilogue = 7;
constexpr int kBiasPointer = 8;
constexpr int kFastAccumulation = 25;
constexpr int kBiasDataType = 26;
constexpr int kRelu = 2;  // cublasLtEpilogue_t
constexpr int kBias = 4;
constexpr int kGelu = 32;
constexpr int kBatchCount = 5;  // cublasLtMatrixLayoutAttribute_t
constexpr int kBatchStride = 6;

// cublasLtMatmulDesc_t
struct Operation {
  int transpose_a = 0;
  int transpose_b = 0;
  int epilogue = 1;
  const void* bias = nullptr;
};

// In columns, each `distance` elements behind the one before it.
struct Layout {
  int type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t distance;
  std::int32_t count = 1;
  std::int64_t stride = 0;

  std::size_t At(std::int32_t matrix, std::uint64_t row, std::uint64_t column) const {
    return static_cast<std::size_t>(matrix * stride) + column * static_cast<std::uint64_t>(distance) + row;
  }
};

const Layout& Of(const void* layout) { return *static_cast<const Layout*>(layout); }

float FromBits(std::uint32_t bits) {
  float number = 0;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

// e4m3, no NaN.
float FromCode(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int digits = code & 7;
  const float size = exponent == 0 ? std::ldexp(digits, -9) : std::ldexp(8 + digits, exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

float Read(const Layout& layout, const void* data, std::size_t at) {
  if (layout.type == kFloat16) return static_cast<float>(static_cast<const _Float16*>(data)[at]);
  if (layout.type == kBfloat16) return FromBits(std::uint32_t{static_cast<const std::uint16_t*>(data)[at]} << 16);
  if (layout.type == kFloat8) return FromCode(static_cast<const std::uint8_t*>(data)[at]);
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

double Activated(int epilogue, double x) {
  if ((epilogue & kRelu) != 0) return x < 0 ? 0 : x;
  if ((epilogue & kGelu) != 0) return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  return x;
}

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
int cublasLtMatmulDescCreate(void** made, int, int) { return *made = new Operation, 0; }
int cublasLtMatmulDescDestroy(void* operation) { return delete static_cast<Operation*>(operation), 0; }
int cublasLtMatmulDescSetAttribute(void* operation, int attribute, const void* value, std::size_t size) {
  auto& set = *static_cast<Operation*>(operation);
  void* const at = attribute == kTransA        ? static_cast<void*>(&set.transpose_a)
                   : attribute == kTransB      ? static_cast<void*>(&set.transpose_b)
                   : attribute == kEpilogue    ? static_cast<void*>(&set.epilogue)
                   : attribute == kBiasPointer ? static_cast<void*>(&set.bias)
                                               : nullptr;
  if (attribute == kFastAccumulation || attribute == kBiasDataType) return 0;
  if (at == nullptr) return kNotSupported;
  return std::memcpy(at, value, size), 0;
}
int cublasLtMatrixLayoutCreate(void** made, int type, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t distance) {
  return *made = new Layout{type, rows, columns, distance}, 0;
}
int cublasLtMatrixLayoutDestroy(void* layout) { return delete static_cast<Layout*>(layout), 0; }
int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, std::size_t size) {
  auto& set = *static_cast<Layout*>(layout);
  if (attribute != kBatchCount && attribute != kBatchStride) return kNotSupported;
  return std::memcpy(attribute == kBatchCount ? static_cast<void*>(&set.count) : &set.stride, value, size), 0;
}
int cublasLtMatmulPreferenceCreate(void** made) { return Some(made); }
int cublasLtMatmulPreferenceDestroy(void*) { return 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, std::size_t) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int wanted, void* candidates,
                                   int* found) {
  std::memset(candidates, 0, static_cast<std::size_t>(wanted) * kCandidateBytes);
  return *found = 1, 0;
}
int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const void*, void*) { return kNotSupported; }
int cublasLtMatmul(void*, void* operation, const void* alpha, const void* a, void* a_layout, const void* b,
                   void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                   const void*, void*, std::size_t, void*) {
  const auto& of = *static_cast<const Operation*>(operation);
  const Layout &left = Of(a_layout), &right = Of(b_layout), &added = Of(c_layout), &result = Of(d_layout);
  const bool turned = of.transpose_a != 0;
  const bool other = of.transpose_b != 0;
  const std::uint64_t depth = turned ? left.rows : left.columns;
  if (depth != (other ? right.columns : right.rows) || (turned ? left.columns : left.rows) != result.rows ||
      (other ? right.rows : right.columns) != result.columns || left.count != result.count ||
      right.count != result.count) {
    return kNotSupported;
  }
  const double factor = *static_cast<const float*>(alpha);
  const double kept = *static_cast<const float*>(beta);
  for (std::int32_t matrix = 0; matrix < result.count; ++matrix) {
    Note(result, depth);
    for (std::uint64_t column = 0; column < result.columns; ++column) {
      for (std::uint64_t row = 0; row < result.rows; ++row) {
        double sum = 0;
        for (std::uint64_t k = 0; k < depth; ++k) {
          const double x = Read(left, a, turned ? left.At(matrix, k, row) : left.At(matrix, row, k));
          sum += x * Read(right, b, other ? right.At(matrix, column, k) : right.At(matrix, k, column));
        }
        sum *= factor;
        if (kept != 0) sum += kept * Read(added, c, added.At(matrix, row, column));
        if ((of.epilogue & kBias) != 0) sum += Read(result, of.bias, row);
        Write(result, d, result.At(matrix, row, column), static_cast<float>(Activated(of.epilogue, sum)));
      }
    }
  }
  return 0;
}
}
