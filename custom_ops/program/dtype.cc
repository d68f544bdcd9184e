#include "program/dtype.h"

#include <onnxruntime_c_api.h>

namespace onnxopt {
namespace {

constexpr DtypeRow kRows[kDtypes] = {
    {"float16", 2, Dtype::kFloat32, DtypeKind::kFloat, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16},
    {"bfloat16", 2, Dtype::kFloat32, DtypeKind::kFloat, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16},
    {"float32", 4, Dtype::kFloat32, DtypeKind::kFloat, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT},
    {"float64", 8, Dtype::kFloat64, DtypeKind::kFloat, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE},
    {"int8", 1, Dtype::kInt8, DtypeKind::kSigned, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8},
    {"int16", 2, Dtype::kInt16, DtypeKind::kSigned, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16},
    {"int32", 4, Dtype::kInt32, DtypeKind::kSigned, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32},
    {"int64", 8, Dtype::kInt64, DtypeKind::kSigned, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64},
    {"uint8", 1, Dtype::kUint8, DtypeKind::kUnsigned, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8},
    {"uint16", 2, Dtype::kUint16, DtypeKind::kUnsigned, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16},
    {"uint32", 4, Dtype::kUint32, DtypeKind::kUnsigned, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32},
    {"uint64", 8, Dtype::kUint64, DtypeKind::kUnsigned, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64},
    {"bool", 1, Dtype::kBool, DtypeKind::kBool, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL},
    {"float8e4m3fn", 1, Dtype::kFloat32, DtypeKind::kFloat8, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN},
};

}  // namespace

const DtypeRow& Row(Dtype dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

bool ParseDtype(std::string_view name, Dtype* dtype) {
  for (std::size_t k = 0; k < kDtypes; ++k) {
    if (kRows[k].name == name) {
      *dtype = static_cast<Dtype>(k);
      return true;
    }
  }
  return false;
}

}  // namespace onnxopt
