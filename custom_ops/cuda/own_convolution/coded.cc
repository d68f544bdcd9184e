#include "cuda/own_convolution/coded.h"

#include <algorithm>
#include <limits>

#include "coded_convolution/abi.h"
#include "program/divisor.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxDepth = 1 << 16;  // of sums that int32 holds
constexpr std::int64_t kRows = 128;          // of a tile
constexpr std::int64_t kAccess = 16;         // bytes

std::int64_t Columns(const Variant& variant) { return variant.shape.As<CodedConvolutionVariant>().columns; }

float LowestOf(Dtype dtype) { return dtype == Dtype::kUint8 ? 0 : -128; }

CodedNumbers NumbersOf(const Convolution& convolution) {
  const ConvolutionCodes& codes = *convolution.codes;
  const CodeScale rounded = codes.rounded.value_or(CodeScale{1, 0});
  const CodeScale residual = codes.residual.value_or(CodeScale{1, 0});
  const CodeScale result = codes.result.value_or(CodeScale{1, 0});
  const Dtype between = codes.rounded_dtype == CodeDtype::kUint8 ? Dtype::kUint8 : Dtype::kInt8;
  return {codes.zero,
          codes.scale,
          1 / rounded.scale,
          rounded.scale,
          LowestOf(between) - rounded.zero,
          residual.scale,
          residual.zero,
          convolution.activation_value,
          1 / result.scale,
          LowestOf(convolution.outputs[0]) - result.zero,
          result.zero};
}

}  // namespace

// The first whose tiles are as wide as the result, else the widest.
std::size_t CodedConvolutions::Choose(const ConvolutionSizes& sizes) const {
  const auto& variants = kernel_.variants;
  const bool fits = sizes.output_pixels() <= kMax - kRows && sizes.r * sizes.s * sizes.c <= kMaxDepth &&
                    std::max(sizes.h, sizes.w) < kMax / 2 && sizes.c % kAccess == 0 && sizes.k % kAccess == 0;
  std::size_t chosen = variants.size();
  for (std::size_t k = 0; fits && k < variants.size(); ++k) {
    if (variants[k].shared > launcher_.device().shared) continue;
    chosen = k;
    if (Columns(variants[k]) >= sizes.k) break;
  }
  return chosen;
}

bool CodedConvolutions::Run(const ConvolutionSizes& sizes, const OwnOperands& at, Stream stream) const {
  const std::size_t chosen = Choose(sizes);
  if (chosen == kernel_.variants.size() || !AreAligned({at.x, at.w, at.bias, at.residual, at.scale, at.y}, kAccess))
    return false;
  const std::int64_t across = CeilDiv(sizes.k, Columns(kernel_.variants[chosen]));
  const std::int64_t tiles = CeilDiv(sizes.output_pixels(), kRows) * across;
  if (tiles > kMax) return false;
  CodedConvolutionParams params{at.x,
                                at.w,
                                at.scale,
                                at.bias,
                                at.residual,
                                at.y,
                                static_cast<unsigned>(sizes.output_pixels()),
                                static_cast<unsigned>(sizes.k),
                                static_cast<unsigned>(sizes.r * sizes.s * sizes.c),
                                static_cast<unsigned>(tiles),
                                static_cast<unsigned>(across),
                                static_cast<int>(sizes.h),
                                static_cast<int>(sizes.w),
                                static_cast<int>(sizes.pads[1]),
                                static_cast<int>(sizes.pads[2]),
                                MakeDivisor32(sizes.output_h * sizes.output_w),
                                MakeDivisor32(sizes.output_w),
                                MakeDivisor32(sizes.c),
                                NumbersOf(kernel_.meaning.As<Convolution>())};
  const unsigned blocks = std::min(params.tiles, launcher_.Resident(chosen));
  launcher_.Launch(chosen, blocks, reinterpret_cast<unsigned char*>(&params), stream);
  return true;
}

}  // namespace onnxopt::cuda
