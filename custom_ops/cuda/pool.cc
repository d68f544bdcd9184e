#include "cuda/pool.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernel_file/variants.h"
#include "program/divisor.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMaxThreads = std::numeric_limits<std::int32_t>::max();  // of a launch, for Divisor

using costs::pool::kFewThreads;
using costs::pool::kMinAccess;

// What the threads of one variant go through in an image, or a volume.
struct Tiles {
  std::uint64_t groups;
  std::uint64_t across;
  std::uint64_t down;
  std::uint64_t through;

  Tiles(const Variant& variant, const CoreCall& call)
      : groups(static_cast<std::uint64_t>(call.channels) / variant.vector),
        across(CeilDiv(call.out_width, variant.shape.As<PoolVariant>().across)),
        down(CeilDiv(call.out_height, variant.shape.As<PoolVariant>().down)),
        through(static_cast<std::uint64_t>(call.out_depth)) {}

  // At most kMaxThreads + 1: such an image is too large.
  std::uint64_t of_image() const {
    const std::uint64_t row = groups * across;  // both below 2^31
    if (row > kMaxThreads / down) return kMaxThreads + 1;
    return row * down > kMaxThreads / through ? kMaxThreads + 1 : row * down * through;
  }
};

// Whether its threads share nothing of what they load.
bool HasSingleOutputs(const Variant& variant) {
  const PoolVariant& tile = variant.shape.As<PoolVariant>();
  return tile.down == 1 && tile.across == 1;
}

}  // namespace

std::optional<PoolCore::Launch> PoolCore::LaunchOf(const Pool& pool, const Variant& variant, const CoreCall& call,
                                                   const CoreGpu& /*gpu*/, std::uint64_t pass) {
  const std::size_t size = Size(pool.dtype());
  if (call.channels % variant.vector != 0 || !AreAligned({call.input[0], call.y}, variant.vector * size))
    return std::nullopt;
  const Tiles tiles(variant, call);
  if (tiles.of_image() > kMaxThreads) return std::nullopt;
  const std::uint64_t images_at_once = kMaxThreads / tiles.of_image();
  const auto all = static_cast<std::uint64_t>(call.batch);
  const std::uint64_t first = pass * images_at_once;
  const auto count = static_cast<unsigned>(std::min(images_at_once, all - first) * tiles.of_image());
  const auto bytes = [&](std::int64_t d, std::int64_t h, std::int64_t w) {
    return first * static_cast<std::uint64_t>(d * h * w * call.channels) * size;
  };
  Launch launch{{static_cast<const char*>(call.input[0]) + bytes(call.depth, call.height, call.width),
                 static_cast<char*>(call.y) + bytes(call.out_depth, call.out_height, call.out_width), count,
                 static_cast<int>(call.depth), static_cast<int>(call.height), static_cast<int>(call.width),
                 static_cast<int>(call.channels), static_cast<int>(call.out_height), static_cast<int>(call.out_width),
                 static_cast<int>(call.pad_front), static_cast<int>(call.pad_top), static_cast<int>(call.pad_left),
                 MakeDivisor32(tiles.groups), MakeDivisor32(tiles.across), MakeDivisor32(tiles.down),
                 MakeDivisor32(tiles.through)},
                static_cast<unsigned>(CeilDiv(count, variant.threads))};
  launch.passes = CeilDiv(all, images_at_once);
  return launch;
}

std::size_t PoolCore::Choose(const Pool& pool, const std::vector<Variant>& variants, const CoreCall& call,
                             const CoreGpu& gpu) {
  const auto fits = [&](std::size_t k) { return Fits(pool, variants[k], call, gpu); };
  std::size_t chosen = 0;
  while (chosen < variants.size() && !fits(chosen)) ++chosen;
  for (std::size_t next = chosen + 1; next < variants.size(); ++next) {
    const std::uint64_t threads = Tiles(variants[chosen], call).of_image() * static_cast<std::uint64_t>(call.batch);
    if (threads >= kFewThreads * gpu.multiprocessors || !HasSingleOutputs(variants[chosen])) break;
    if (variants[next].vector * Size(pool.dtype()) < kMinAccess) break;
    if (fits(next)) chosen = next;
  }
  return chosen;
}

CallSize PoolCore::SizeOf(const Pool& /*pool*/, const CoreCall& call) {
  return {static_cast<std::uint64_t>(call.elements()), static_cast<std::uint64_t>(call.channels)};
}

}  // namespace onnxopt::cuda
