#include "cuda/programs/pointwise.h"

#include "cuda/programs/pointwise_variant.h"

namespace onnxopt::cuda {
namespace {

// "a[2, 3] b..." is not known here any more: counts and runs tell enough to see which shapes found no variant.
std::string Describe(const Program& program, const Domain& domain) {
  std::string text = std::to_string(domain.count) + " elements, inputs read along";
  for (std::size_t k = 0; k < program.accesses(); ++k) {
    text += " " + std::to_string(domain.access[k].runs);
  }
  return text + " runs of dims";
}

}  // namespace

void PointwiseCudaKernel::Run(const Domain& domain, OrtKernelContext* context) const {
  const std::size_t rule = ChooseVariant(program(), kernel().variants, domain);
  if (rule == kernel().variants.size()) throw Error("no variant fits: " + Describe(program(), domain));
  const Stream stream = launcher_.Enter(context);
  const auto launch = [&](std::size_t chosen) {
    const Variant& variant = kernel().variants[chosen];
    alignas(16) unsigned char block[kMaxParams];
    FillParams(program(), variant, domain, block);
    launcher_.Launch(chosen, GridSize(variant, domain), block, stream);
  };
  const auto fits = [&](std::size_t k) { return VariantFits(program(), kernel().variants[k], domain); };
  launch(launcher_.Choose({domain.count, 0}, rule, stream, fits, launch));
}

}  // namespace onnxopt::cuda
