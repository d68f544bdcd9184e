// The functions of cuDNN's backend API, found at run time: no cuDNN headers, no link to cuDNN. Names, signatures and
// values are those of cudnn_graph.h and cudnn_ops.h (cuDNN 9).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "cuda/launch/driver.h"
#include "support/error.h"

namespace onnxopt::cudnn {

using Status = int;
using Handle = struct CudnnHandleTag*;
using BackendDescriptor = void*;
using TensorDescriptor = struct TensorTag*;          // cudnnTensorDescriptor_t, of the older API
using ActivationDescriptor = struct ActivationTag*;  // cudnnActivationDescriptor_t
using OpTensorDescriptor = struct OpTensorTag*;      // cudnnOpTensorDescriptor_t

constexpr Status kSuccess = 0;

// cudnnDataType_t
constexpr int kFloat = 0;
constexpr int kHalf = 2;
constexpr int kInt8 = 3;
constexpr int kInt32 = 4;
constexpr int kUint8 = 6;
constexpr int kBfloat16 = 9;

// cudnnBackendDescriptorType_t
constexpr int kPointwise = 0;
constexpr int kConvolution = 1;
constexpr int kEngine = 2;
constexpr int kEngineConfig = 3;
constexpr int kEngineHeuristic = 4;
constexpr int kExecutionPlan = 5;
constexpr int kKnobChoice = 7;
constexpr int kConvolutionForward = 10;
constexpr int kConvolutionBackwardData = 12;
constexpr int kPointwiseOperation = 13;
constexpr int kOperationGraph = 15;
constexpr int kVariantPack = 16;
constexpr int kTensor = 17;

// cudnnBackendAttributeType_t
enum class Type : int {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kFloat = 4,
  kDouble = 5,
  kPointer = 6,
  kConvolutionMode = 7,
  kHeuristicMode = 8,
  kKnobType = 9,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kBehaviorNote = 19,
  kChar = 24,
};

// cudnnBackendAttributeName_t
enum class Name : int {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kPointwiseReluUpperClip = 4,
  kPointwiseReluSlope = 5,
  kPointwiseSwishBeta = 8,
  kConvolutionPrecision = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionSpatialDims = 106,
  kHeuristicMode = 200,
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kConfigEngine = 300,
  kConfigKnobChoices = 302,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanJson = 405,
  kKnobType = 600,
  kKnobValue = 601,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConvolution = 702,
  kForwardW = 703,
  kForwardX = 704,
  kForwardY = 705,
  kBackwardAlpha = 706,
  kBackwardBeta = 707,
  kBackwardConvolution = 708,
  kBackwardW = 709,
  kBackwardDx = 710,
  kBackwardDy = 711,
  kOperationPointwise = 750,
  kOperationX = 751,
  kOperationB = 752,
  kOperationY = 753,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorDataType = 901,
  kTensorDims = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineGraph = 1300,
  kEngineIndex = 1301,
  kEngineNumericalNotes = 1303,
  kEngineBehaviorNotes = 1305,
};

constexpr int kCrossCorrelation = 1;  // cudnnConvolutionMode_t
// cudnnBackendHeurMode_t
constexpr int kModeFallback = 2;
constexpr int kModeA = 3;
// cudnnPointwiseMode_t
constexpr int kAdd = 0;
constexpr int kMultiply = 1;
constexpr int kMinimum = 2;
constexpr int kMaximum = 3;
constexpr int kRelu = 100;
constexpr int kSwish = 106;
// cudnnBackendNumericalNote_t
constexpr int kUsesTensorCores = 0;
constexpr int kConvertsInputsDown = 1;
constexpr int kReducesInLessPrecision = 2;
constexpr int kIsNotDeterministic = 4;
// cudnnBackendBehaviorNote_t
constexpr int kCompilesAtRunTime = 0;
// cudnnActivationMode_t
constexpr int kActivationSigmoid = 0;
constexpr int kActivationRelu = 1;
constexpr int kActivationClippedRelu = 3;
constexpr int kActivationSwish = 6;
constexpr int kOpTensorMultiply = 1;  // cudnnOpTensorOp_t
constexpr int kOpTensorMinimum = 2;
constexpr int kOpTensorMaximum = 3;
constexpr int kPropagatesNan = 1;  // cudnnNanPropagation_t

struct Api {
  std::size_t (*cudnnGetVersion)();
  std::size_t (*cudnnGetCudartVersion)();
  const char* (*cudnnGetErrorString)(Status status);
  Status (*cudnnCreate)(Handle* handle);
  Status (*cudnnSetStream)(Handle handle, cuda::Stream stream);
  Status (*cudnnBackendCreateDescriptor)(int kind, BackendDescriptor* descriptor);
  Status (*cudnnBackendDestroyDescriptor)(BackendDescriptor descriptor);
  Status (*cudnnBackendFinalize)(BackendDescriptor descriptor);
  Status (*cudnnBackendSetAttribute)(BackendDescriptor descriptor, int name, int type, std::int64_t count,
                                     const void* values);
  Status (*cudnnBackendGetAttribute)(BackendDescriptor descriptor, int name, int type, std::int64_t wanted,
                                     std::int64_t* count, void* values);
  Status (*cudnnBackendExecute)(Handle handle, BackendDescriptor plan, BackendDescriptor pack);
  Status (*cudnnCreateTensorDescriptor)(TensorDescriptor* tensor);
  Status (*cudnnDestroyTensorDescriptor)(TensorDescriptor tensor);
  Status (*cudnnSetTensor4dDescriptorEx)(TensorDescriptor tensor, int dtype, int n, int c, int h, int w, int stride_n,
                                         int stride_c, int stride_h, int stride_w);
  Status (*cudnnAddTensor)(Handle handle, const void* alpha, TensorDescriptor a_tensor, const void* a, const void* beta,
                           TensorDescriptor c_tensor, void* c);
  Status (*cudnnCreateActivationDescriptor)(ActivationDescriptor* activation);
  Status (*cudnnDestroyActivationDescriptor)(ActivationDescriptor activation);
  Status (*cudnnSetActivationDescriptor)(ActivationDescriptor activation, int mode, int nan, double coefficient);
  Status (*cudnnActivationForward)(Handle handle, ActivationDescriptor activation, const void* alpha,
                                   TensorDescriptor x_tensor, const void* x, const void* beta,
                                   TensorDescriptor y_tensor, void* y);

  Status (*cudnnSetTensor)(Handle handle, TensorDescriptor y_tensor, void* y, const void* value);
  Status (*cudnnCreateOpTensorDescriptor)(OpTensorDescriptor* op);
  Status (*cudnnDestroyOpTensorDescriptor)(OpTensorDescriptor op);
  Status (*cudnnSetOpTensorDescriptor)(OpTensorDescriptor op, int mode, int dtype, int nan);
  Status (*cudnnOpTensor)(Handle handle, OpTensorDescriptor op, const void* alpha1, TensorDescriptor a_tensor,
                          const void* a, const void* alpha2, TensorDescriptor b_tensor, const void* b, const void* beta,
                          TensorDescriptor c_tensor, void* c);

  // Throws Refused "<what>: <name of the status>" where `status` is an error.
  void Check(Status status, const std::string& what) const;
};

// An error that cuDNN returned: it does not take a graph, a configuration or a call.
class Refused : public Error {
 public:
  using Error::Error;
};

// cuDNN, or nullptr where the process can find none. Looked for again until it is found. The one that the process holds
// already, by the name that ONNX Runtime's CUDA provider gives it, comes first: one process, one cuDNN.
const Api* Find();

// Why no convolution runs on cuDNN, and what follows; nothing where they do.
std::optional<std::string> Obstacle();

// Opens the cuBLASLt that cuDNN's precompiled engines call: they end the process where it is not there. Throws Error
// where it cannot be found.
void RequireCublaslt(const Api& api);

}  // namespace onnxopt::cudnn
