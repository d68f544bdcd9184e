// The numbers of rows that may come beside one that runs, where shapes come with the input.
#pragma once

#include <string>

#include "cuda/gemm/product_call.h"
#include "cuda/gemm/product_plan.h"

namespace onnxopt::cuda {

// Keeps the algorithms that the heuristic chooses for them.
void ChooseForSizes(const ProductCall& call, const std::string& gpu, const Plan& plan);

// Runs each of these over a few rows that nothing ran before: the first run of a kernel loads it, which takes 3 to 5
// milliseconds. operands: of a call. What cuBLASLt refuses is left out. Does nothing where `tune` has not chosen.
void LoadForSizes(const ProductCall& call, const std::string& gpu, const Operands& operands, const Gemm& gemm,
                  const PlanKey& key);

}  // namespace onnxopt::cuda
