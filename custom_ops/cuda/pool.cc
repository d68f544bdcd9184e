#include "cuda/pool.h"

#include <algorithm>
#include <limits>

#include "kernel_file/pool.h"
#include "pool/abi.h"
#include "program/divisor.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMostThreads = std::numeric_limits<std::int32_t>::max();  // of a launch, for Divisor

using costs::pool::kFewThreads;
using costs::pool::kLeastAccess;

// What the threads of one variant go through in an image.
struct Tiles {
  std::uint64_t groups;
  std::uint64_t across;
  std::uint64_t down;

  Tiles(const Variant& variant, const PoolCall& call)
      : groups(static_cast<std::uint64_t>(call.c) / variant.vector),
        across(CeilDiv(call.output_w, variant.shape.As<PoolTile>().across)),
        down(CeilDiv(call.output_h, variant.shape.As<PoolTile>().down)) {}

  // At most kMostThreads + 1: such an image is too large.
  std::uint64_t of_image() const {
    const std::uint64_t row = groups * across;  // both below 2^31
    return row > kMostThreads / down ? kMostThreads + 1 : row * down;
  }
};

bool Fits(const Variant& variant, Dtype dtype, const PoolCall& call) {
  return call.c % variant.vector == 0 && AreAligned({call.x, call.y}, variant.vector * Size(dtype)) &&
         Tiles(variant, call).of_image() <= kMostThreads;
}

// Whether its threads share nothing of what they load.
bool HasSingleOutputs(const Variant& variant) {
  const PoolTile& tile = variant.shape.As<PoolTile>();
  return tile.down == 1 && tile.across == 1;
}

// The first variant that fits, or of those with single outputs the next narrower one as long as there are few threads
// and their loads are not too small. The number of variants where none fits.
template <typename Test>
std::size_t Rule(const std::vector<Variant>& variants, Dtype dtype, const PoolCall& call, unsigned multiprocessors,
                 Test&& fits) {
  std::size_t rule = 0;
  while (rule < variants.size() && !fits(rule)) ++rule;
  for (std::size_t next = rule + 1; next < variants.size(); ++next) {
    const std::uint64_t threads = Tiles(variants[rule], call).of_image() * static_cast<std::uint64_t>(call.n);
    if (threads >= kFewThreads * multiprocessors || !HasSingleOutputs(variants[rule])) break;
    if (variants[next].vector * Size(dtype) < kLeastAccess) break;
    if (fits(next)) rule = next;
  }
  return rule;
}

}  // namespace

void PoolCudaKernel::Compute(OrtKernelContext* context) const {
  const Pool& pool = kernel().meaning.As<Pool>();
  const PoolCall call = OpenCall(pool, context);
  if (call.output_elements() == 0) return;
  const std::vector<Variant>& variants = kernel().variants;
  const auto fits = [&](std::size_t k) { return Fits(variants[k], pool.dtype(), call); };
  const Stream stream = launcher_.Enter(context);
  const std::size_t rule = Rule(variants, pool.dtype(), call, launcher_.device().multiprocessors, fits);
  if (rule == variants.size()) {
    throw Error("no variant fits a pool of " + std::to_string(call.h) + " x " + std::to_string(call.w) + " x " +
                std::to_string(call.c));
  }
  const auto launch = [&](std::size_t k) { Launch(k, call, stream); };
  const CallSize size{static_cast<std::uint64_t>(call.output_elements()), static_cast<std::uint64_t>(call.c)};
  launch(launcher_.Choose(size, rule, stream, fits, launch));
}

// Several times where there are too many images for one launch.
void PoolCudaKernel::Launch(std::size_t variant, const PoolCall& call, Stream stream) const {
  const Variant& entry = kernel().variants[variant];
  const Tiles tiles(entry, call);
  const std::size_t size = Size(kernel().meaning.As<Pool>().dtype());
  const auto images_at_once = static_cast<std::int64_t>(kMostThreads / tiles.of_image());
  for (std::int64_t first = 0; first < call.n; first += images_at_once) {
    const auto images = static_cast<std::uint64_t>(std::min(images_at_once, call.n - first));
    const auto count = static_cast<unsigned>(images * tiles.of_image());
    PoolParams params{
        static_cast<const char*>(call.x) + static_cast<std::size_t>(first * call.h * call.w * call.c) * size,
        static_cast<char*>(call.y) + static_cast<std::size_t>(first * call.output_h * call.output_w * call.c) * size,
        count,
        static_cast<int>(call.h),
        static_cast<int>(call.w),
        static_cast<int>(call.c),
        static_cast<int>(call.output_h),
        static_cast<int>(call.output_w),
        static_cast<int>(call.pad_top),
        static_cast<int>(call.pad_left),
        MakeDivisor32(tiles.groups),
        MakeDivisor32(tiles.across),
        MakeDivisor32(tiles.down)};
    const auto blocks = static_cast<unsigned>(CeilDiv(count, entry.threads));
    launcher_.Launch(variant, blocks, reinterpret_cast<unsigned char*>(&params), stream);
  }
}

}  // namespace onnxopt::cuda
