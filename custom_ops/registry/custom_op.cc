#include "registry/custom_op.h"

#include <limits>

#include "program/shape.h"

namespace onnxopt {
namespace {

ONNXTensorElementDataType Element(Dtype dtype) { return static_cast<ONNXTensorElementDataType>(Row(dtype).element); }

void CheckCounts(const OrtKernelInfo* info, const Kernel& kernel) {
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  Check(Ort().KernelInfo_GetInputCount(info, &inputs));
  Check(Ort().KernelInfo_GetOutputCount(info, &outputs));
  if (inputs == kernel.inputs.size() && outputs == kernel.outputs.size()) return;
  throw Error("the node has " + std::to_string(inputs) + " inputs and " + std::to_string(outputs) +
              " outputs, kernels.json has " + std::to_string(kernel.inputs.size()) + " and " +
              std::to_string(kernel.outputs.size()) + "; model and library belong to different artifacts");
}

// ONNX Runtime asks without saying of which op. Any input may lend its buffer: ONNX Runtime takes one that nothing
// reads later, of the output's shape and element size, and skips those that a node does not have.
std::size_t AnyInputForOutput0(int** inputs, int** outputs) {
  static int input[kMaxInputs];
  static int output[kMaxInputs];  // zeros
  static const bool filled = [] {
    for (std::size_t k = 0; k < kMaxInputs; ++k) input[k] = static_cast<int>(k);
    return true;
  }();
  *inputs = input;
  *outputs = output;
  return filled ? kMaxInputs : 0;
}

}  // namespace

CustomOp::CustomOp(const Kernel& kernel, const char* provider, const cuda::Library* library)
    : OrtCustomOp{}, kernel_(kernel), kind_(*FindKind(kernel.kind)), provider_(provider), library_(library) {
  version = ORT_API_VERSION;
  SetCallbacks();
}

void CustomOp::SetCallbacks() {
  GetName = [](const OrtCustomOp* op) { return Self(op).kernel_.name.c_str(); };
  GetExecutionProviderType = [](const OrtCustomOp* op) { return Self(op).provider_; };
  GetInputType = [](const OrtCustomOp* op, std::size_t k) { return Element(Self(op).kernel_.inputs[k]); };
  GetInputTypeCount = [](const OrtCustomOp* op) { return Self(op).kernel_.inputs.size(); };
  GetOutputType = [](const OrtCustomOp* op, std::size_t k) { return Element(Self(op).kernel_.outputs[k]); };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return Self(op).kernel_.outputs.size(); };
  GetInputCharacteristic = [](const OrtCustomOp*, std::size_t) { return INPUT_OUTPUT_REQUIRED; };
  GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) { return INPUT_OUTPUT_REQUIRED; };
  GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return OrtMemTypeDefault; };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };

  if (kind_.MayRunInPlace(kernel_)) {
    GetMayInplace = AnyInputForOutput0;
    ReleaseMayInplace = [](int*, int*) {};
  }

  CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info, void** kernel) {
    const CustomOp& self = Self(op);
    return Guard(self.kernel_.name.c_str(), [&] { *kernel = self.Make(info); });
  };
  KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
    const auto* self = static_cast<const FusedKernel*>(kernel);
    return Guard(self->kernel().name.c_str(), [&] { self->Compute(context); });
  };
  KernelDestroy = [](void* kernel) { delete static_cast<FusedKernel*>(kernel); };
  InferOutputShapeFn = [](const OrtCustomOp* op, OrtShapeInferContext* context) {
    const CustomOp& self = Self(op);
    return Guard(self.kernel_.name.c_str(), [&] { self.kind_.InferShapes(self.kernel_, context); });
  };
}

FusedKernel* CustomOp::Make(const OrtKernelInfo* info) const {
  CheckCounts(info, kernel_);
  if (library_ == nullptr) return kind_.MakeCpu(kernel_).release();
  return kind_.MakeCuda(kernel_, *library_, info).release();
}

}  // namespace onnxopt
