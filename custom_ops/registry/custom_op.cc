#include "registry/custom_op.h"

#include <memory>
#include <string>

#include "program/shape.h"
#include "registry/hidden_schema.h"
#include "support/nvtx.h"

namespace onnxopt {
namespace {

struct ReleaseTypeInfo {
  void operator()(OrtTypeInfo* info) const { Ort().ReleaseTypeInfo(info); }
};

constexpr char kOtherArtifact[] = "; model and library belong to different artifacts";

void CheckCounts(const OrtKernelInfo* info, const Kernel& kernel) {
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  Check(Ort().KernelInfo_GetInputCount(info, &inputs));
  Check(Ort().KernelInfo_GetOutputCount(info, &outputs));
  if (inputs == kernel.inputs.size() && outputs == kernel.outputs.size()) return;
  throw Error("the node has " + std::to_string(inputs) + " inputs and " + std::to_string(outputs) +
              " outputs, kernels.json has " + std::to_string(kernel.inputs.size()) + " and " +
              std::to_string(kernel.outputs.size()) + kOtherArtifact);
}

// ONNX Runtime looks kernels up by name alone, as no schema says what dtypes an op takes. type: nullptr where the graph
// does not say.
void CheckDtype(OrtTypeInfo* type, const std::string& what, Dtype expected) {
  if (type == nullptr) return;
  const std::unique_ptr<OrtTypeInfo, ReleaseTypeInfo> owned(type);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  Check(Ort().CastTypeInfoToTensorInfo(type, &tensor));
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  if (tensor != nullptr) Check(Ort().GetTensorElementType(tensor, &element));
  if (element == Row(expected).element) return;
  throw Error("the node's " + what + " has elements of ONNX's type " + std::to_string(element) + ", kernels.json has " +
              std::string(Row(expected).name) + " (type " + std::to_string(Row(expected).element) + ")" +
              kOtherArtifact);
}

void CheckDtypes(const OrtKernelInfo* info, const Kernel& kernel) {
  for (std::size_t k = 0; k < kernel.inputs.size(); ++k) {
    OrtTypeInfo* type = nullptr;
    Check(Ort().KernelInfo_GetInputTypeInfo(info, k, &type));
    CheckDtype(type, "input " + std::to_string(k), kernel.inputs[k]);
  }
  for (std::size_t k = 0; k < kernel.outputs.size(); ++k) {
    OrtTypeInfo* type = nullptr;
    Check(Ort().KernelInfo_GetOutputTypeInfo(info, k, &type));
    CheckDtype(type, "output " + std::to_string(k), kernel.outputs[k]);
  }
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
  SetCallbacks();
}

void CustomOp::SetCallbacks() {
  DeclareNothing(this);
  GetName = [](const OrtCustomOp* op) { return Self(op).kernel_.name.c_str(); };
  GetExecutionProviderType = [](const OrtCustomOp* op) { return Self(op).provider_; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };

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
    const char* const name = self->kernel().name.c_str();
    return Guard(name, [&] {
      const NvtxRange range(name);
      self->Compute(context);
    });
  };
  KernelDestroy = [](void* kernel) { delete static_cast<FusedKernel*>(kernel); };
}

FusedKernel* CustomOp::Make(const OrtKernelInfo* info) const {
  CheckCounts(info, kernel_);
  CheckDtypes(info, kernel_);
  if (library_ == nullptr) return kind_.MakeCpu(kernel_).release();
  return kind_.MakeCuda(kernel_, *library_, info).release();
}

}  // namespace onnxopt
