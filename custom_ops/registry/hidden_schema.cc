#include "registry/hidden_schema.h"

#include <limits>

namespace onnxopt {

HiddenSchema::HiddenSchema(const std::string& name) : OrtCustomOp{}, name_(name) {
  DeclareNothing(this);
  GetName = [](const OrtCustomOp* op) { return static_cast<const HiddenSchema*>(op)->name().c_str(); };
  GetExecutionProviderType = [](const OrtCustomOp*) { return "onnxopt.hides_the_schema"; };
  GetStartVersion = [](const OrtCustomOp*) { return 2; };
  CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo*, void**) {
    const std::string& name = static_cast<const HiddenSchema*>(op)->name();
    return Guard(name.c_str(), [] { throw Error("the op that hides a schema has no kernel"); });
  };
  KernelComputeV2 = [](void*, OrtKernelContext*) -> OrtStatus* { return nullptr; };
  KernelDestroy = [](void*) {};
}

void DeclareNothing(OrtCustomOp* op) {
  op->version = ORT_API_VERSION;
  op->GetInputTypeCount = [](const OrtCustomOp*) -> std::size_t { return 0; };
  op->GetOutputTypeCount = [](const OrtCustomOp*) -> std::size_t { return 0; };
  op->GetInputType = [](const OrtCustomOp*, std::size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED; };
  op->GetOutputType = [](const OrtCustomOp*, std::size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED; };
  op->GetInputCharacteristic = [](const OrtCustomOp*, std::size_t) { return INPUT_OUTPUT_REQUIRED; };
  op->GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) { return INPUT_OUTPUT_REQUIRED; };
  op->GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return OrtMemTypeDefault; };
  op->GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  op->GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op->GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op->GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op->GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };
}

}  // namespace onnxopt
