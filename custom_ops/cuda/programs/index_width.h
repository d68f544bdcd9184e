// How wide the indices of a kernel have to be.
#pragma once

#include "call/programs/pointwise.h"

namespace onnxopt::cuda {

// Whether offsets in the domain, in every input and of every condition stay below 2^31.
bool Fits32(const Domain& domain, std::size_t leaves);

}  // namespace onnxopt::cuda
