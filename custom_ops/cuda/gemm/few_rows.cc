#include "cuda/gemm/few_rows.h"

#include <limits>

#include "gemm/few_rows_abi.h"
#include "program/generated/costs.h"
#include "program/generated/gemm.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

using costs::gemm::kBlocksAtOnce;
constexpr unsigned kAccess = 16;  // bytes of a load

std::uint64_t Blocks(const Variant& variant, std::int64_t n) {
  const std::uint64_t columns = variant.threads / kWarpThreads * variant.shape.As<FewRowsVariant>().columns;
  return CeilDiv(n, columns);
}

}  // namespace

FewRowsProducts::FewRowsProducts(const Kernel& kernel, const Launcher& launcher, bool b_is_constant)
    : kernel_(kernel), gemm_(kernel.meaning.As<Gemm>()), launcher_(launcher), b_is_constant_(b_is_constant) {}

// The first entry point for so many rows that the GPU has room for. Among those on the matrix units, which take shared
// memory, one of which more blocks are needed than run at once gives way to one of larger blocks.
std::size_t FewRowsProducts::Choose(const Product& product) const {
  const auto& variants = kernel_.variants;
  std::size_t chosen = variants.size();
  for (std::size_t k = gemm_.has_float8_operands() ? 1 : 0; k < variants.size(); ++k) {  // the first one widens codes
    const Variant& v = variants[k];
    if (!v.shape.Is<FewRowsVariant>() || v.shape.As<FewRowsVariant>().rows < product.m ||
        v.shared > launcher_.device().shared)
      continue;
    if (chosen < variants.size() && v.shared == 0) break;
    chosen = k;
    if (v.shared == 0 || Blocks(v, product.n) <= kBlocksAtOnce * launcher_.device().multiprocessors) break;
  }
  return chosen;
}

bool FewRowsProducts::Run(const Product& product, const Operands& at, Stream stream) const {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (product.batch_dims > 0 || product.k == 0 || product.n > kMax || product.k > kMax) return false;
  const std::size_t chosen = Choose(product);
  if (chosen == kernel_.variants.size()) return false;
  const Variant& variant = kernel_.variants[chosen];
  if (product.k % variant.vector != 0) return false;
  if (Alignment(at.a) < kAccess || Alignment(at.b) < kAccess) return false;
  FewRowsParams params{at.a,
                       at.b,
                       at.bias,
                       at.residual,
                       at.output,
                       static_cast<unsigned>(product.m),
                       static_cast<unsigned>(product.n),
                       static_cast<unsigned>(product.k),
                       b_is_constant_ ? 1U : 0U,
                       gemm_.alpha,
                       gemm_.beta};
  launcher_.Launch(chosen, static_cast<unsigned>(Blocks(variant, product.n)), reinterpret_cast<unsigned char*>(&params),
                   stream);
  return true;
}

}  // namespace onnxopt::cuda
