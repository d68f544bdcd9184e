#include "cuda_variant.h"

#include <algorithm>
#include <cstring>

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMaxGrid = 0x7fffffff;
constexpr std::uint64_t kMax32 = std::uint64_t{1} << 31U;
constexpr std::size_t kWidestAccess = 16;  // bytes that a GPU thread loads or stores at once

// Elements of an input that lies so.
std::uint64_t Elements(const Access& access) {
  std::uint64_t product = 1;
  for (std::size_t k = 0; k < access.runs; ++k) product *= access.run[k].mod;
  return product;
}

bool FitsMode(char mode, const Access& access, std::uint64_t count) {
  switch (mode) {
    case 'F':
      return count == 1 || access.Flat(count);
    case 'S':
      return access.runs == 0;
    case 'R':
      return access.runs == 1 && access.run[0].div == 1;
    case 'C':
      return access.runs == 1 && access.run[0].div > 1;
    case 'T':
      return access.runs == 2;
    default:
      return access.runs <= static_cast<std::size_t>(kMaxTerms);
  }
}

bool Fits(const Kernel& kernel, const Variant& variant, const Domain& domain, bool fits32) {
  if (variant.index == 32 && !fits32) return false;
  const Program& program = kernel.program;
  for (std::size_t k = 0; k < program.inputs.size(); ++k) {
    if (!FitsMode(variant.modes[k], domain.access[k], domain.count)) return false;
    if (variant.modes[k] == 'F' && !Aligned(domain.input[k], program.inputs[k], variant.vector)) return false;
  }
  // Where every input is '*' the kernel looks at its output pointers itself.
  if (variant.modes.find_first_not_of('*') == std::string::npos) return true;
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    if (!Aligned(domain.output[k], program.outputs[k], variant.vector)) return false;
  }
  return true;
}

// kCell without kInner means splats, so an input with an inner run that is not aligned must do without both.
unsigned Flags(const Access& access, const Domain& domain, bool aligned, unsigned vector) {
  const unsigned flat = aligned && access.Flat(domain.count) ? kFlat : 0U;
  const bool inner = access.runs > 0 && access.run[0].div == 1;
  if (inner && (!aligned || access.run[0].mod % vector != 0)) return flat;
  for (std::size_t k = inner ? 1 : 0; k < access.runs; ++k) {
    if (access.run[k].div % vector != 0) return flat;
  }
  return flat | kCell | (inner ? kInner : 0U);
}

Divisor<Index32> MakeDivisor32(std::uint64_t d) {
  unsigned shift = 0;
  while ((std::uint64_t{1} << shift) < d) ++shift;
  const std::uint64_t multiplier = (((std::uint64_t{1} << shift) - d) << 32U) / d + 1;
  return {static_cast<Index32>(d), static_cast<Index32>(multiplier), shift};
}

template <typename Index>
Divisor<Index> MakeDivisor(std::uint64_t d) {
  if constexpr (sizeof(Index) == sizeof(Index32)) {
    return MakeDivisor32(d);
  } else {
    return {d};
  }
}

template <typename Index>
void FillInputsOf(const std::vector<Dtype>& dtypes, const Variant& variant, const Domain& domain, unsigned char* at) {
  for (std::size_t k = 0; k < dtypes.size(); ++k, at += sizeof(Input<Index>)) {
    const Access& access = domain.access[k];
    const bool aligned = Aligned(domain.input[k], dtypes[k], variant.vector);
    Input<Index> input{};
    input.data = domain.input[k];
    input.terms = static_cast<unsigned>(access.runs);
    input.flags = Flags(access, domain, aligned, variant.vector);
    for (std::size_t t = 0; t < access.runs; ++t) {
      // Terms are ordered from the outermost dim inwards, so that the last one may have div 1.
      const Run& run = access.run[access.runs - 1 - t];
      input.term[t] = {MakeDivisor<Index>(run.div), MakeDivisor<Index>(run.mod), static_cast<Index>(run.stride)};
    }
    std::memcpy(at, &input, sizeof(input));
  }
}

}  // namespace

bool Aligned(const void* data, Dtype dtype, unsigned vector) {
  const std::size_t bytes = std::min(Size(dtype) * vector, kWidestAccess);
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

bool Fits32(const Domain& domain, std::size_t inputs) {
  if (domain.count >= kMax32) return false;
  return std::all_of(domain.access, domain.access + inputs, [](const Access& a) { return Elements(a) < kMax32; });
}

void FillInputs(const std::vector<Dtype>& dtypes, const Variant& variant, const Domain& domain, unsigned char* at) {
  if (variant.index == 32) {
    FillInputsOf<Index32>(dtypes, variant, domain, at);
  } else {
    FillInputsOf<Index64>(dtypes, variant, domain, at);
  }
}

std::size_t ChooseVariant(const Kernel& kernel, const Domain& domain) {
  const bool fits32 = Fits32(domain, kernel.program.inputs.size());
  std::size_t k = 0;
  while (k < kernel.variants.size() && !Fits(kernel, kernel.variants[k], domain, fits32)) ++k;
  return k;
}

void FillParams(const Kernel& kernel, const Variant& variant, const Domain& domain, unsigned char* block) {
  const std::size_t outputs = kernel.program.outputs.size();
  const unsigned long long count = domain.count;
  std::memcpy(block, &count, sizeof(count));
  std::memcpy(block + kOutputsAt, static_cast<const void*>(domain.output), outputs * sizeof(void*));
  FillInputs(kernel.program.inputs, variant, domain, block + InputsAt(outputs));
}

unsigned GridSize(const Variant& variant, std::uint64_t count) {
  const std::uint64_t tile = std::uint64_t{variant.threads} * variant.vector * variant.unroll;
  const std::uint64_t blocks = count / tile + (count % tile != 0 ? 1 : 0);
  if (blocks > kMaxGrid) throw Error("a tensor of " + std::to_string(count) + " elements is too large for one launch");
  return static_cast<unsigned>(blocks);
}

}  // namespace onnxopt::cuda
