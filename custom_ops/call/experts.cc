#include "call/experts.h"

#include "call/generated/calls.h"
#include "call/tensors.h"

namespace onnxopt {

ExpertsCall OpenCall(const Experts& experts, OrtKernelContext* context) {
  Binding binding("experts", experts.inputs.size(), context);
  BindShapes(experts, &binding);
  ExpertsCall call{};
  call.tokens = binding[kN];
  call.x = binding.data(kExpertsX);
  call.ids = static_cast<const std::int64_t*>(binding.data(kExpertsIds));
  call.factors = binding.data(kExpertsFactors);
  for (const std::size_t k : {0, 1}) {
    const std::optional<std::size_t>& bias = k == 0 ? experts.first_bias : experts.second_bias;
    call.weight[k] = binding.data(kExpertsWeights + k);
    call.bias[k] = bias ? binding.data(*bias) : nullptr;
  }
  call.y = OutputTensor(context, 0, binding.shape(kExpertsX));
  if (call.tokens == 0) call.y = nullptr;
  return call;
}

}  // namespace onnxopt
