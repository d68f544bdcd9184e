#include "call/experts.h"

#include <string>

#include "call/tensors.h"
#include "program/shape.h"

namespace onnxopt {
namespace {

void Expect(const char* what, const Shape& shape, const Shape& wanted) {
  if (shape == wanted) return;
  throw Error("mixture of experts: " + std::string(what) + " of shape " + ToString(shape) + ", expected " +
              ToString(wanted));
}

}  // namespace

ExpertsCall OpenCall(const Experts& experts, OrtKernelContext* context) {
  Shape shapes[Experts::kMaxInputs];
  const void* inputs[Experts::kMaxInputs] = {};
  for (std::size_t k = 0; k < experts.inputs.size(); ++k) inputs[k] = InputTensor(context, k, &shapes[k]);
  const Shape& x = shapes[kExpertsX];
  ExpertsCall call{};
  call.tokens = x.rank == 2 ? x.dims[0] : 0;
  Expect("tokens", x, Shape{2, {call.tokens, experts.columns}});
  const Shape choices{2, {call.tokens, experts.chosen}};
  Expect("ids", shapes[kExpertsIds], choices);
  Expect("factors", shapes[kExpertsFactors], choices);
  Expect("the first weight", shapes[kExpertsWeights], Shape{3, {experts.experts, experts.columns, experts.wide()}});
  Expect("the second weight", shapes[kExpertsWeights + 1],
         Shape{3, {experts.experts, experts.hidden, experts.columns}});
  call.x = inputs[kExpertsX];
  call.ids = static_cast<const std::int64_t*>(inputs[kExpertsIds]);
  call.factors = inputs[kExpertsFactors];
  call.weight[0] = inputs[kExpertsWeights];
  call.weight[1] = inputs[kExpertsWeights + 1];
  const std::int64_t widths[] = {experts.wide(), experts.columns};
  for (const int k : {0, 1}) {
    const std::optional<std::size_t> bias = k == 0 ? experts.first_bias : experts.second_bias;
    if (!bias) continue;
    Expect("a bias", shapes[*bias], Shape{2, {experts.experts, widths[k]}});
    call.bias[k] = inputs[*bias];
  }
  call.y = OutputTensor(context, 0, x);
  if (call.tokens == 0) call.y = nullptr;
  return call;
}

}  // namespace onnxopt
