#include "cuda/flash_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_file/variants.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMaxBlocks = 0x7fffffff;
constexpr float kLog2E = 1.4426950408889634F;
using costs::flash_attention::kLongBlocks;
using costs::flash_attention::kMaxShort;

HeadsOf ToDevice(const HeadsPlace& place) {
  return {place.data, static_cast<unsigned long long>(place.of_batch), static_cast<unsigned long long>(place.of_head),
          static_cast<unsigned>(place.of_token)};
}

// Whether all rows are aligned to the accesses of an entry point.
bool Aligned(const FlashAttentionCall& call, unsigned access) {
  return AreAligned({call.y, call.q.data, call.k.data, call.v.data}, access);
}

// Sequences that blocks take at once, at most `most`. A block keeps its bias where this is a multiple of the period.
std::uint64_t Step(std::uint64_t most, std::uint64_t batch, std::uint64_t period) {
  const std::uint64_t step = std::clamp<std::uint64_t>(most, 1, batch);
  return step > period ? step - step % period : step;
}

// Microseconds that a call takes: multiprocessors run their blocks some at a time, in waves.
double Expected(const FlashAttention& attention, const Variant& variant, const FlashAttentionCall& call,
                unsigned multiprocessors) {
  const auto& shape = variant.shape.As<FlashAttentionVariant>();
  const unsigned queries = FlashQueries(variant);
  const FlashWarpgroups& warpgroups = *shape.warpgroups;
  const double tiles = std::ceil(static_cast<double>(call.queries) / queries);
  const double all = tiles * static_cast<double>(attention.heads) * static_cast<double>(call.batch);
  const double blocks = std::ceil(all / multiprocessors);  // of a multiprocessor
  const double keys = std::ceil(static_cast<double>(call.keys) / shape.keys) * shape.keys;
  return std::ceil(blocks / static_cast<double>(warpgroups.blocks)) * double{warpgroups.wave} +
         blocks * queries * keys * 1e-6 * double{warpgroups.scores};
}

// Whether blocks whose warps take several bands of queries keep the GPU busy: a multiprocessor holds some of them, and
// there are more of them than multiprocessors.
bool KeepsBusy(const Variant& variant, const FlashAttentionCore::Launch& launch, const CoreGpu& gpu) {
  if (variant.shape.As<FlashAttentionVariant>().bands == 1) return true;
  return kLongBlocks * variant.shared <= gpu.shared && launch.blocks > gpu.multiprocessors;
}

}  // namespace

std::optional<FlashAttentionCore::Launch> FlashAttentionCore::LaunchOf(const FlashAttention& attention,
                                                                       const Variant& variant,
                                                                       const FlashAttentionCall& call,
                                                                       const CoreGpu& gpu, std::uint64_t /*pass*/) {
  const auto& shape = variant.shape.As<FlashAttentionVariant>();
  if (!Aligned(call, shape.access)) return std::nullopt;
  if (shape.short_rows && (call.keys < 1 || call.keys > shape.keys)) return std::nullopt;
  const std::uint64_t rows = FlashQueries(variant);
  const std::uint64_t tiles = CeilDiv(call.queries, rows);
  const auto heads = static_cast<std::uint64_t>(attention.heads);
  const auto batch = static_cast<std::uint64_t>(call.batch);
  if (tiles * heads > kMaxBlocks / batch) return std::nullopt;
  const auto period = static_cast<std::uint64_t>(call.bias_period);
  const bool steps = shape.short_rows && !shape.warpgroups;
  const std::uint64_t step = steps ? Step(gpu.resident / (tiles * heads), batch, period) : batch;
  Launch launch{};
  FlashAttentionParams& params = launch.params;
  params.q = ToDevice(call.q);
  params.k = ToDevice(call.k);
  params.v = ToDevice(call.v);
  params.bias = call.bias;
  params.sinks = call.sinks;
  params.y = call.y;
  params.bias_batch = static_cast<unsigned long long>(call.bias_batch);
  params.bias_head = static_cast<unsigned long long>(call.bias_head);
  params.bias_period = static_cast<unsigned>(period);
  params.bias_query = static_cast<unsigned>(call.bias_query);
  params.batch = static_cast<unsigned>(batch);
  params.step = static_cast<unsigned>(step);
  params.heads = static_cast<unsigned>(heads);
  params.group = static_cast<unsigned>(attention.heads / attention.groups);
  params.queries = static_cast<unsigned>(call.queries);
  params.keys = static_cast<unsigned>(call.keys);
  params.tiles = static_cast<unsigned>(tiles);
  params.behind = static_cast<int>(call.keys - call.queries);
  params.before = static_cast<int>(attention.before.value_or(0));
  params.after = static_cast<int>(attention.after.value_or(0));
  params.scale = attention.cap ? attention.scale / *attention.cap : attention.scale * kLog2E;
  params.cap = attention.cap.value_or(0) * kLog2E;
  launch.blocks = static_cast<unsigned>(tiles * heads * step);
  return launch;
}

bool FlashAttentionCore::Fits(const FlashAttention& attention, const Variant& variant, const FlashAttentionCall& call,
                              const CoreGpu& gpu) {
  const auto& shape = variant.shape.As<FlashAttentionVariant>();
  const bool runs = !shape.warpgroups || gpu.warpgroups;
  const bool rounds = !HasFloat32Products(attention) || shape.exact != gpu.tf32;
  return runs && rounds && variant.shared <= gpu.shared && LaunchOf(attention, variant, call, gpu, 0).has_value();
}

std::size_t FlashAttentionCore::Choose(const FlashAttention& attention, const std::vector<Variant>& variants,
                                       const FlashAttentionCall& call, const CoreGpu& gpu) {
  std::size_t best = variants.size();
  std::size_t of_warpgroups = variants.size();
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < variants.size(); ++k) {
    if (!Fits(attention, variants[k], call, gpu)) continue;
    const auto& shape = variants[k].shape.As<FlashAttentionVariant>();
    if (shape.warpgroups) {
      const double microseconds = Expected(attention, variants[k], call, gpu.multiprocessors);
      if (microseconds < least) of_warpgroups = k;
      least = std::min(least, microseconds);
      continue;
    }
    if (!KeepsBusy(variants[k], *LaunchOf(attention, variants[k], call, gpu, 0), gpu)) continue;
    if (best == variants.size()) {
      best = k;
      continue;
    }
    const auto& chosen = variants[best].shape.As<FlashAttentionVariant>();
    if (shape.short_rows && (!chosen.short_rows || shape.keys < chosen.keys)) best = k;
  }
  if (best == variants.size()) return of_warpgroups;
  const auto& chosen = variants[best].shape.As<FlashAttentionVariant>();
  const bool is_short = chosen.short_rows && chosen.keys <= kMaxShort;
  return is_short || of_warpgroups == variants.size() ? best : of_warpgroups;
}

CallSize FlashAttentionCore::SizeOf(const FlashAttention& attention, const FlashAttentionCall& call) {
  const auto rows = static_cast<std::uint64_t>(call.batch * attention.heads * call.queries);
  return {rows, static_cast<std::uint64_t>(call.keys)};
}

std::string FlashAttentionCore::Describe(const FlashAttention& /*attention*/, const FlashAttentionCall& call) {
  return "an attention of " + std::to_string(call.batch) + " sequences of " + std::to_string(call.queries) +
         " queries and " + std::to_string(call.keys) + " keys";
}

}  // namespace onnxopt::cuda
