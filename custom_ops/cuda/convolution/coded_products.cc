#include "cuda/convolution/coded_products.h"

#include <algorithm>
#include <limits>

#include "coded_product/abi.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

using costs::convolution::kOwnProductDepth;
constexpr int kFirstMajor = 8;          // compute capability from which there are products of a depth of 32 codes
constexpr std::int64_t kRows = 128;     // of a tile
constexpr std::uintptr_t kAccess = 16;  // bytes

std::int64_t Columns(const Variant& variant) { return variant.shape.As<CodedProductVariant>().columns; }

bool AreAligned(const ConvolutionPointers& at) {
  std::uintptr_t bits = 0;
  for (const void* data : {at.x, at.w, at.bias, at.residual, at.scale, static_cast<const void*>(at.y)}) {
    bits |= reinterpret_cast<std::uintptr_t>(data);
  }
  return bits % kAccess == 0;
}

}  // namespace

// The first whose tiles are as wide as the result, else the widest.
std::size_t CodedProducts::Choose(const ConvolutionSizes& sizes) const {
  const auto& variants = kernel_.variants;
  const std::int64_t rows = sizes.input_pixels();
  const bool fits = rows <= std::numeric_limits<std::int32_t>::max() - kRows && sizes.c <= kOwnProductDepth &&
                    sizes.c % kAccess == 0 && sizes.k % kAccess == 0;
  if (variants.empty() || !fits || launcher_.device().major < kFirstMajor) return variants.size();
  std::size_t chosen = variants.size();
  for (std::size_t k = 0; k < variants.size(); ++k) {
    if (variants[k].shared > launcher_.device().shared) continue;
    chosen = k;
    if (Columns(variants[k]) >= sizes.k) break;
  }
  return chosen;
}

bool CodedProducts::Run(const ConvolutionSizes& sizes, const ConvolutionPointers& at, Stream stream) const {
  const std::size_t chosen = Choose(sizes);
  if (chosen == kernel_.variants.size() || !AreAligned(at)) return false;
  const std::int64_t across = CeilDiv(sizes.k, Columns(kernel_.variants[chosen]));
  const std::int64_t tiles = CeilDiv(sizes.input_pixels(), kRows) * across;
  if (tiles > std::numeric_limits<std::int32_t>::max()) return false;
  CodedProductParams params{at.x,
                            at.w,
                            at.scale,
                            at.bias,
                            at.residual,
                            at.y,
                            static_cast<unsigned>(sizes.input_pixels()),
                            static_cast<unsigned>(sizes.k),
                            static_cast<unsigned>(sizes.c),
                            static_cast<unsigned>(tiles),
                            static_cast<unsigned>(across)};
  const unsigned blocks = std::min(params.tiles, launcher_.Resident(chosen));
  launcher_.Launch(chosen, blocks, reinterpret_cast<unsigned char*>(&params), stream);
  return true;
}

}  // namespace onnxopt::cuda
