// Which variant of a kernel fits a domain, and its parameter block.
#pragma once

#include "call/programs/pointwise.h"
#include "program/programs/pointwise_params.h"

namespace onnxopt::cuda {

// The first variant whose modes, index width and alignment fit, or variants.size() if none does.
std::size_t ChooseVariant(const Program& program, const std::vector<Variant>& variants, const Domain& domain);

// Whether a variant may run this domain, whatever comes before it in the kernel's order.
bool VariantFits(const Program& program, const Variant& variant, const Domain& domain);

// Whether vectors of `vector` elements may be loaded from or stored to `data`.
bool Aligned(const void* data, Dtype dtype, unsigned vector);

// Writes device/abi.h's array of Input for leaves of these storage dtypes. A condition's has its terms, and the flag
// kCell where it is the same for a whole vector.
void FillInputs(const std::vector<Dtype>& dtypes, const Variant& variant, const Domain& domain, unsigned char* at);

// Writes pointwise/abi.h's Params for this variant into `block` of kMaxParams bytes.
void FillParams(const Program& program, const Variant& variant, const Domain& domain, unsigned char* block);

// Blocks of threads that cover the domain. Throws Error where there are more than a grid has.
unsigned GridSize(const Variant& variant, const Domain& domain);

}  // namespace onnxopt::cuda
