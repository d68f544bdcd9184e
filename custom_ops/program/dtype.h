// Storage and compute dtypes: the C++ side of onnxopt/dtypes.py.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace onnxopt {

enum class Dtype : std::uint8_t {
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kBool,
  kFloat8E4M3,  // conversions to it saturate
};

constexpr std::size_t kDtypes = 14;

enum class DtypeKind : std::uint8_t { kFloat, kSigned, kUnsigned, kBool, kFloat8 };

// name: as in kernels.json. size: bytes an element. compute: the dtype that arithmetic on it runs in.
// element: its ONNXTensorElementDataType.
struct DtypeRow {
  std::string_view name;
  std::size_t size;
  Dtype compute;
  DtypeKind kind;
  int element;
};

const DtypeRow& Row(Dtype dtype);

inline std::size_t Size(Dtype dtype) { return Row(dtype).size; }
inline bool IsCompute(Dtype dtype) { return Row(dtype).compute == dtype; }
// A float of 16 or 32 bits.
inline bool IsFloat(Dtype dtype) {
  return Row(dtype).kind == DtypeKind::kFloat && Row(dtype).compute == Dtype::kFloat32;
}

// The dtypes of a kernel's inputs or outputs, copied without an allocation.
class DtypeList {
 public:
  DtypeList() = default;
  DtypeList(std::initializer_list<Dtype> dtypes) : DtypeList(dtypes.begin(), dtypes.end()) {}
  DtypeList(const std::vector<Dtype>& dtypes) : DtypeList(dtypes.begin(), dtypes.end()) {}  // NOLINT: as it reads

  DtypeList(std::size_t count, Dtype dtype) : size_(std::min(count, kMaxDtypes)) {
    std::fill_n(dtypes_.begin(), size_, dtype);
  }

  std::size_t size() const { return size_; }
  Dtype operator[](std::size_t k) const { return dtypes_[k]; }
  const Dtype* begin() const { return dtypes_.data(); }
  const Dtype* end() const { return dtypes_.data() + size_; }

 private:
  template <typename Iterator>
  DtypeList(Iterator begin, Iterator end) : size_(std::min<std::size_t>(end - begin, kMaxDtypes)) {
    std::copy_n(begin, size_, dtypes_.begin());
  }

  static constexpr std::size_t kMaxDtypes = 64;

  std::array<Dtype, kMaxDtypes> dtypes_{};
  std::size_t size_ = 0;
};

// False where no dtype has this name.
bool ParseDtype(std::string_view name, Dtype* dtype);

}  // namespace onnxopt
