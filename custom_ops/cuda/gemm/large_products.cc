#include "cuda/gemm/large_products.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gemm/large_products_abi.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr int kHopper = 9;           // major compute capability, which the entry points are compiled for alone
constexpr unsigned kAlignment = 16;  // bytes, of matrices and of their rows
constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kPanel = 64;  // columns of b that come together

// Values of cuda.h.
constexpr int kMapOfFloat16 = 6;
constexpr int kMapOfBfloat16 = 9;
constexpr int kMapOfTf32 = 11;
constexpr int kRowsOf128Bytes = 3;  // swizzled
constexpr int kWholeSectors = 3;    // 256 bytes of L2

// Microseconds, fitted to products (costs/data/gemm.json). A wave is a tile for every multiprocessor. Of ours, a tile
// and a step of its depth take longer by its columns. cuBLASLt has tiles of many shapes, so that the last wave is as
// good as full, and the activation reads and writes the result.
using costs::gemm::kClear;
using costs::gemm::kLargeCall;
using costs::gemm::kLargeFloat32;
using costs::gemm::kLargeStep;
using costs::gemm::kLargeStepColumn;
using costs::gemm::kLargeTile;
using costs::gemm::kLargeTileColumn;
using costs::gemm::kTheirCall;
using costs::gemm::kTheirCallFloat32;
using costs::gemm::kTheirColumns;
using costs::gemm::kTheirStep;
using costs::gemm::kTheirStepFloat32;
using costs::gemm::kTheirTile;
using costs::gemm::kTheirTileFloat32;

// Elements of the depth that products read at once.
std::int64_t Depth(Dtype dtype) { return static_cast<std::int64_t>(kTileRowBytes / Size(dtype)); }

double Steps(const Product& product, Dtype dtype) {
  return static_cast<double>(product.k) / static_cast<double>(Depth(dtype));
}

int MapOf(Dtype dtype) {
  if (dtype == Dtype::kFloat32) return kMapOfTf32;
  return dtype == Dtype::kFloat16 ? kMapOfFloat16 : kMapOfBfloat16;
}

double OursTakes(const Product& product, Dtype dtype, std::int64_t columns, unsigned multiprocessors) {
  const std::uint64_t tiles = CeilDiv(product.m, kTileRows) * CeilDiv(product.n, columns);
  const auto waves = static_cast<double>(CeilDiv(tiles, multiprocessors));
  const double steps = Steps(product, dtype);
  const auto wide = static_cast<double>(columns);
  const double tile = kLargeTile + kLargeTileColumn * wide + steps * (kLargeStep + kLargeStepColumn * wide);
  return (dtype == Dtype::kFloat32 ? kLargeFloat32 : 1.0) * (kLargeCall + waves * tile);
}

double TheirsTakes(const Product& product, Dtype dtype, unsigned multiprocessors) {
  const double elements = static_cast<double>(product.m) * static_cast<double>(product.n);
  const double waves = elements / (kTileRows * kTheirColumns * multiprocessors);
  const double steps = Steps(product, dtype);
  if (dtype == Dtype::kFloat32) return kTheirCallFloat32 + waves * (kTheirTileFloat32 + steps * kTheirStepFloat32);
  return kTheirCall + waves * (kTheirTile + steps * kTheirStep);
}

}  // namespace

LargeProducts::LargeProducts(const Kernel& kernel, const Driver& driver, const Launcher& launcher)
    : kernel_(kernel), gemm_(kernel.meaning.As<Gemm>()), driver_(driver), launcher_(launcher) {}

// The entry point that is expected to take least time, or none.
std::size_t LargeProducts::Choose(const Product& product) const {
  const DeviceTraits& device = launcher_.device();
  const auto& variants = kernel_.variants;
  std::size_t chosen = variants.size();
  double least = kClear * TheirsTakes(product, gemm_.dtype(), device.multiprocessors);
  for (std::size_t k = 0; k < variants.size(); ++k) {
    if (!variants[k].shape.Is<TilesVariant>() || variants[k].shared > device.shared) continue;
    const std::int64_t columns = variants[k].shape.As<TilesVariant>().columns;
    const double takes = OursTakes(product, gemm_.dtype(), columns, device.multiprocessors);
    if (takes >= least) continue;
    least = takes;
    chosen = k;
  }
  return chosen;
}

bool LargeProducts::Fits(const Product& product, const Operands& at) const {
  const auto of_row = static_cast<std::int64_t>(kAlignment / Size(gemm_.dtype()));
  const bool one = product.batch_dims == 0 && product.k > 0 && std::max({product.m, product.n, product.k}) <= kMax;
  const bool rows = product.n % of_row == 0 && product.k % of_row == 0 && product.ldb % of_row == 0;
  const bool aligned = AreAligned({at.a, at.b, at.bias, at.output}, kAlignment);
  return launcher_.device().major == kHopper && driver_.cuTensorMapEncodeTiled != nullptr && !gemm_.transpose_a &&
         at.residual == nullptr && one && rows && aligned;
}

bool LargeProducts::Run(const Product& product, const Operands& at, bool tf32, Stream stream) const {
  if (!Fits(product, at) || (gemm_.dtype() == Dtype::kFloat32 && !tf32)) return false;
  const std::size_t chosen = Choose(product);
  if (chosen == kernel_.variants.size()) return false;
  const std::int64_t columns = kernel_.variants[chosen].shape.As<TilesVariant>().columns;
  const std::int64_t depth = Depth(gemm_.dtype());
  LargeProductParams params{};
  const auto map = [&](const void* data, std::int64_t in_row, std::int64_t rows, std::int64_t pitch, std::int64_t wide,
                       std::int64_t high, MatrixMap* to) {
    const std::uint64_t dims[] = {static_cast<std::uint64_t>(in_row), static_cast<std::uint64_t>(rows)};
    const std::uint64_t strides[] = {static_cast<std::uint64_t>(pitch) * Size(gemm_.dtype())};
    const unsigned tile[] = {static_cast<unsigned>(wide), static_cast<unsigned>(high)};
    const unsigned each[] = {1, 1};
    driver_.Check(driver_.cuTensorMapEncodeTiled(to, MapOf(gemm_.dtype()), 2, const_cast<void*>(data), dims, strides,
                                                 tile, each, 0, kRowsOf128Bytes, kWholeSectors, 0),
                  "cannot describe a product's operand");
  };
  map(at.a, product.k, product.m, product.k, depth, kTileRows, &params.a);
  if (gemm_.transpose_b) {
    map(at.b, product.k, product.n, product.ldb, depth, columns, &params.b);
  } else {
    map(at.b, product.n, product.k, product.ldb, kPanel, depth, &params.b);
  }
  params.bias = at.bias;
  params.output = at.output;
  params.rows = static_cast<unsigned>(product.m);
  params.columns = static_cast<unsigned>(product.n);
  params.depth = static_cast<unsigned>(product.k);
  params.alpha = gemm_.alpha;
  const std::uint64_t tiles = CeilDiv(product.m, kTileRows) * CeilDiv(product.n, columns);
  const auto blocks = std::min<std::uint64_t>(tiles, launcher_.device().multiprocessors);
  launcher_.Launch(chosen, static_cast<unsigned>(blocks), reinterpret_cast<unsigned char*>(&params), stream);
  return true;
}

void LargeProducts::Activate(void* output, std::uint64_t count, Stream stream) const {
  const auto& variants = kernel_.variants;
  const auto is = [](const Variant& v) { return v.shape.Is<ActivationVariant>(); };
  const auto variant = std::find_if(variants.begin(), variants.end(), is);
  if (variant == variants.end()) throw Error("nothing in the artifact computes a product's activation on this GPU");
  ActivateParams params{output, count};
  const std::uint64_t of_block = variant->threads * (kActivatedBytes / Size(gemm_.dtype()));
  const std::uint64_t blocks = CeilDiv(count, of_block);
  if (blocks > static_cast<std::uint64_t>(kMax)) throw Error("a product's result is too large for its activation");
  launcher_.Launch(static_cast<std::size_t>(variant - variants.begin()), static_cast<unsigned>(blocks),
                   reinterpret_cast<unsigned char*>(&params), stream);
}

}  // namespace onnxopt::cuda
