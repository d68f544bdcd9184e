// The functions of cuBLASLt that products need, found at run time in the library that ONNX Runtime's CUDA provider, or
// something else in the process, has loaded. Names, signatures and values are those of cublasLt.h (CUDA 12 and 13).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/launch/driver.h"
#include "kernel_file/measured/gemm_algorithms.h"
#include "support/error.h"

namespace onnxopt::cublaslt {

using Status = int;
using Handle = struct HandleTag*;
using Operation = struct OperationTag*;    // cublasLtMatmulDesc_t
using Layout = struct LayoutTag*;          // cublasLtMatrixLayout_t
using Preference = struct PreferenceTag*;  // cublasLtMatmulPreference_t

using Algorithm = cuda::Algorithm;

struct Candidate {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  std::size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};

constexpr Status kSuccess = 0;
constexpr Status kInvalidValue = 7;
constexpr Status kArchMismatch = 8;
constexpr Status kNotSupported = 15;
// cublasComputeType_t
constexpr int kCompute32F = 68;
constexpr int kCompute32FFastTf32 = 77;
// cudaDataType_t
constexpr int kReal32F = 0;
constexpr int kReal16F = 2;
constexpr int kReal16BF = 14;
constexpr int kReal8FE4M3 = 28;
// cublasOperation_t
constexpr int kTranspose = 1;
// cublasLtMatmulDescAttributes_t
constexpr int kTransA = 3;
constexpr int kTransB = 4;
constexpr int kEpilogue = 7;
constexpr int kBiasPointer = 8;
constexpr int kFastAccumulation = 25;
constexpr int kBiasDataType = 26;
// cublasLtEpilogue_t, bits but for the first
constexpr int kEpilogueDefault = 1;
constexpr int kEpilogueRelu = 2;
constexpr int kEpilogueBias = 4;
constexpr int kEpilogueGelu = 32;
// cublasLtMatrixLayoutAttribute_t
constexpr int kBatchCount = 5;
constexpr int kBatchStride = 6;
// cublasLtMatmulPreferenceAttributes_t
constexpr int kMaxWorkspace = 1;
constexpr int kReductionSchemes = 3;
constexpr int kMinAlignmentA = 5;  // B, C and D follow
// cublasLtReductionScheme_t: partial sums of a split product are added in float32, never in 16 bits
constexpr std::uint32_t kReduceInComputeType = 2;

// This cuBLASLt on this GPU does not take a product of this kind, whatever else may happen.
class Refusal : public Error {
 public:
  using Error::Error;
};

struct Api {
  Status (*cublasLtCreate)(Handle* handle);
  Status (*cublasLtDestroy)(Handle handle);
  std::size_t (*cublasLtGetVersion)();
  const char* (*cublasLtGetStatusName)(Status status);
  Status (*cublasLtMatmulDescCreate)(Operation* operation, int compute, int scale);
  Status (*cublasLtMatmulDescDestroy)(Operation operation);
  Status (*cublasLtMatmulDescSetAttribute)(Operation operation, int attribute, const void* value, std::size_t size);
  Status (*cublasLtMatrixLayoutCreate)(Layout* layout, int type, std::uint64_t rows, std::uint64_t columns,
                                       std::int64_t distance);
  Status (*cublasLtMatrixLayoutDestroy)(Layout layout);
  Status (*cublasLtMatrixLayoutSetAttribute)(Layout layout, int attribute, const void* value, std::size_t size);
  Status (*cublasLtMatmulPreferenceCreate)(Preference* preference);
  Status (*cublasLtMatmulPreferenceDestroy)(Preference preference);
  Status (*cublasLtMatmulPreferenceSetAttribute)(Preference preference, int attribute, const void* value,
                                                 std::size_t size);
  Status (*cublasLtMatmulAlgoGetHeuristic)(Handle handle, Operation operation, Layout a, Layout b, Layout c, Layout d,
                                           Preference preference, int wanted, Candidate* candidates, int* count);
  Status (*cublasLtMatmulAlgoCheck)(Handle handle, Operation operation, Layout a, Layout b, Layout c, Layout d,
                                    const Algorithm* algorithm, Candidate* result);
  Status (*cublasLtMatmul)(Handle handle, Operation operation, const void* alpha, const void* a, Layout a_layout,
                           const void* b, Layout b_layout, const void* beta, const void* c, Layout c_layout, void* d,
                           Layout d_layout, const Algorithm* algorithm, void* workspace, std::size_t workspace_size,
                           cuda::Stream stream);

  // Throws Error "<what>: <name of the status>" where `status` is an error, a Refusal where it says that.
  void Check(Status status, const std::string& what) const;
};

// cuBLASLt, or nullptr where the process can find none. Looked for again until it is found: ONNX Runtime loads its CUDA
// provider after it has registered custom ops.
const Api* Find();

// Whether products can count on it: it is there already, or ONNX Runtime's CUDA provider, which needs it, lies beside
// ONNX Runtime and will load it before it creates the first kernel.
bool Expected();

}  // namespace onnxopt::cublaslt
