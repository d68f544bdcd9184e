#include "cuda/gemm/packed.h"

#include <algorithm>
#include <limits>

#include "kernel_file/variants.h"
#include "matmul_nbits/abi.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::int64_t kRowsOfBlock = 8;
constexpr int kBfloat16Major = 8;             // compute capability from which matrix units have bfloat16
constexpr std::uintptr_t kRowAlignment = 16;  // bytes
constexpr std::uintptr_t kWordAlignment = 4;  // bytes
constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
using costs::gemm::kPackedWarps;

const void* Move(const void* data, std::int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + bytes;
}

}  // namespace

PackedWeight PackedWeight::From(const Gemm& gemm, std::int64_t column, std::int64_t depth) const {
  const PackedIntegers& of = *gemm.packed;
  const std::int64_t groups = Groups(of, depth);
  const std::int64_t floats = groups * static_cast<std::int64_t>(Size(gemm.dtype()));
  return {Move(codes, column * Bytes(of, groups)), Move(scales, column * floats),
          Move(zeros, column * (gemm.packed_zeros() ? ZeroBytes(of, groups) : floats))};
}

PackedProducts::PackedProducts(const Kernel& kernel, const Launcher& launcher)
    : kernel_(kernel), gemm_(kernel.meaning.As<Gemm>()), launcher_(launcher) {}

// Of those for so many rows and fewest others the one with most warps a block that fills the multiprocessors at most
// twice with those for 8 rows, or once with those for more; otherwise the one with fewest warps. Which are there goes
// by the columns.
std::size_t PackedProducts::Choose(const PackedRowsCall& call) const {
  const auto& variants = kernel_.variants;
  std::size_t chosen = variants.size();
  for (std::size_t k = 0; k < variants.size(); ++k) {
    const Variant& v = variants[k];
    const PackedVariant& shape = v.shape.As<PackedVariant>();
    if (shape.role != PackedRole::kCodes || static_cast<std::int64_t>(shape.rows) < call.m) continue;
    if (v.shared > launcher_.device().shared) continue;
    if (chosen < variants.size() && shape.rows > variants[chosen].shape.As<PackedVariant>().rows) break;
    const std::uint64_t blocks = CeilDiv(call.n, shape.columns) * CeilDiv(call.m, kRowsOfBlock);
    const std::uint64_t room = (call.m <= kRowsOfBlock ? 2 : 1) * kPackedWarps * launcher_.device().multiprocessors;
    chosen = k;
    if (blocks * (v.threads / kWarpThreads) <= room) break;
  }
  return chosen;
}

bool PackedProducts::Run(const PackedRowsCall& call, const Operands& at, const PackedWeight& weight,
                         Stream stream) const {
  if (call.m > kMax || call.n > kMax || call.k > kMax || call.k == 0) return false;
  if (gemm_.dtype() == Dtype::kBfloat16 && launcher_.device().major < kBfloat16Major) return false;
  const PackedIntegers& codes = *gemm_.packed;
  const std::int64_t groups = Groups(codes, call.k);
  const auto row_of_a = static_cast<std::uintptr_t>(call.k) * Size(gemm_.dtype());
  const auto row_of_b = static_cast<std::uintptr_t>(Bytes(codes, groups));
  const auto of_word = static_cast<std::uintptr_t>(64 / codes.bits);  // bytes of a that go with a word of codes
  if (row_of_a % std::max(kRowAlignment, of_word) != 0 || row_of_b % kRowAlignment != 0) return false;
  if (!IsAligned(at.a, kRowAlignment) || !IsAligned(weight.codes, kRowAlignment)) return false;
  const std::size_t chosen = Choose(call);
  if (chosen == kernel_.variants.size()) return false;
  MatMulNBitsParams params{at.a,
                           weight.codes,
                           weight.scales,
                           weight.zeros,
                           at.bias,
                           at.residual,
                           at.output,
                           static_cast<unsigned>(call.m),
                           static_cast<unsigned>(call.n),
                           static_cast<unsigned>(call.k),
                           static_cast<unsigned>(groups),
                           call.constant ? 1U : 0U,
                           gemm_.alpha,
                           gemm_.beta};
  const auto columns = kernel_.variants[chosen].shape.As<PackedVariant>().columns;
  const std::uint64_t blocks = CeilDiv(call.n, columns) * CeilDiv(call.m, kRowsOfBlock);
  launcher_.Launch(chosen, static_cast<unsigned>(blocks), reinterpret_cast<unsigned char*>(&params), stream);
  return true;
}

std::size_t PackedProducts::Only(PackedRole role) const {
  const auto& variants = kernel_.variants;
  const auto is = [&](const Variant& v) { return v.shape.As<PackedVariant>().role == role; };
  const auto match = std::find_if(variants.begin(), variants.end(), is);
  if (match == variants.end()) throw Error("a product with codes lacks an entry point");
  return static_cast<std::size_t>(match - variants.begin());
}

void PackedProducts::Gate(std::int64_t m, std::int64_t n, const void* halves, void* output, Stream stream) const {
  if (m > kMax || n > kMax) throw Error("a gate of " + std::to_string(m) + " rows is too large for this kernel");
  GateParams params{halves, output, static_cast<unsigned>(m), static_cast<unsigned>(n)};
  launcher_.Launch(Only(PackedRole::kGate), static_cast<unsigned>(m), reinterpret_cast<unsigned char*>(&params),
                   stream);
}

void PackedProducts::Widen(std::int64_t n, std::int64_t k, const PackedWeight& weight, void* floats,
                           Stream stream) const {
  const std::int64_t of_word = 32 / gemm_.packed->bits;
  const bool whole = k % of_word == 0 && IsAligned(weight.codes, kWordAlignment);
  if (n > kMax || k > kMax || !whole) {
    throw Error("codes of " + std::to_string(n) + " columns of " + std::to_string(k) +
                " cannot be read by this kernel");
  }
  DequantizeParams params{weight.codes,
                          weight.scales,
                          weight.zeros,
                          floats,
                          static_cast<unsigned>(n),
                          static_cast<unsigned>(k),
                          static_cast<unsigned>(Groups(*gemm_.packed, k))};
  launcher_.Launch(Only(PackedRole::kFloats), static_cast<unsigned>(n), reinterpret_cast<unsigned char*>(&params),
                   stream);
}

}  // namespace onnxopt::cuda
