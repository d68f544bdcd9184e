#include "cuda/attention.h"

#include <algorithm>
#include <limits>

#include "attention/masked_attention_abi.h"
#include "attention/token_attention_abi.h"
#include "call/attention.h"
#include "kernel_file/variants.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMinTokens = 32;  // that a block takes at once
constexpr std::uint64_t kAccessBytes = 16;
using costs::token_attention::kBlocksOfLanes;
using costs::token_attention::kBlocksOfTiles;
using costs::token_attention::kFewRows;
using costs::token_attention::kFewRowsApart;
using costs::token_attention::kLongBytes;

// Keys are cut into `splits` of `tokens` each, so that the blocks of all `others` fill the GPU.
struct Splits {
  std::uint64_t tokens;
  std::uint64_t splits;

  // each: blocks a multiprocessor. in_turn: blocks take tiles of all keys in turn, and tokens are those of GPUs that
  // have no matrix units for the dtype.
  Splits(std::uint64_t keys, std::uint64_t others, std::uint64_t multiprocessors, std::uint64_t each, bool in_turn) {
    const std::uint64_t wanted = std::clamp<std::uint64_t>(each * multiprocessors / others, 1, kMaxSplits);
    if (in_turn) {
      splits = std::clamp<std::uint64_t>(CeilDiv(keys, kMinTokens), 1, wanted);
      tokens = CeilDiv(keys, splits);
      return;
    }
    tokens = std::max(CeilDiv(CeilDiv(keys, wanted), kMinTokens), std::uint64_t{1}) * kMinTokens;
    splits = std::max(CeilDiv(keys, tokens), std::uint64_t{1});
  }
};

bool Aligned(const AttentionCall& call) {
  return AreAligned({call.q, call.k, call.v, call.past_k, call.past_v, call.present_k, call.present_v}, kAccessBytes);
}

bool IsLong(const TokenAttention& attention, const AttentionCall& call) {
  const auto elements = static_cast<std::uint64_t>(2 * call.batch * attention.groups * attention.width * call.keys);
  return elements * Size(attention.cached()) >= kLongBytes;
}

bool Joins(const Variant& variant) { return variant.shape.As<AttentionVariant>().joins; }

bool InTiles(const Variant& variant) { return variant.shape.As<AttentionVariant>().stages > 0; }

bool InRegisters(const Variant& variant) { return variant.shape.As<AttentionVariant>().registers; }

bool InTurn(const Variant& variant) { return InTiles(variant) && Joins(variant); }

// Whether the blocks that share keys are counted, and the last one joins their results
// (costs/data/token_attention.json).
bool AreCounted(const TokenAttention& attention, const Variant& attends, const AttentionCall& call, std::int64_t rows) {
  if (!InTurn(attends) || attention.codes) return false;
  if (InRegisters(attends)) return true;
  return rows <= (call.past_k == call.present_k ? kFewRows : kFewRowsApart);
}

// Of what the blocks of so many rows find, where these need each other's.
std::size_t PartBytes(const Variant& attends, std::uint64_t rows, const Splits& cut, std::int64_t width) {
  if (cut.splits == 1 && Joins(attends)) return 0;
  return rows * cut.splits * static_cast<std::uint64_t>(width + 2) * sizeof(float);
}

CacheScales ScalesOf(const TokenAttention& attention, const AttentionCall& call) {
  return {call.k_scales.data,
          call.v_scales.data,
          static_cast<unsigned>(call.k_scales.head),
          static_cast<unsigned>(call.k_scales.element),
          static_cast<unsigned>(call.v_scales.head),
          static_cast<unsigned>(call.v_scales.element),
          attention.codes && attention.codes->by_reciprocal ? 1U : 0U};
}

}  // namespace

void AttentionCudaKernel::Compute(OrtKernelContext* context) const {
  const AttentionCall call = OpenCall(kernel().meaning.As<TokenAttention>(), context);
  if (call.batch == 0 || call.keys == 0) return;
  const TokenAttention attention = Of(call, kernel().meaning.As<TokenAttention>());
  if (!Aligned(call)) throw Error("a cache of keys or values is not aligned to 16 bytes");
  if (call.past >= std::numeric_limits<std::int32_t>::max()) throw Error("a cache of 2^31 tokens or more");
  const Stream stream = launcher_.Enter(context);
  if (attention.mask) {
    LaunchMasked(attention, call, context, stream);
  } else {
    LaunchOneToken(attention, call, context, stream);
  }
}

void AttentionCudaKernel::LaunchOneToken(const TokenAttention& attention, const AttentionCall& call,
                                         OrtKernelContext* context, Stream stream) const {
  const auto past = static_cast<std::uint64_t>(call.past);
  const auto groups = static_cast<std::uint64_t>(call.batch * attention.groups);
  const Variant& attends = Attending(attention, call);
  const Splits cut(past + 1, groups, launcher_.device().multiprocessors,
                   InTiles(attends) ? kBlocksOfTiles : kBlocksOfLanes, InTurn(attends));
  const auto heads = static_cast<std::uint64_t>(call.batch * attention.heads);
  CallScratch scratch(allocator_, context);
  TokenAttentionParams params{call.q,
                              call.k,
                              call.v,
                              call.past_k,
                              call.past_v,
                              call.present_k,
                              call.present_v,
                              call.output,
                              static_cast<float*>(scratch.Of(PartBytes(attends, heads, cut, attention.width))),
                              static_cast<unsigned long long>(call.q_stride),
                              static_cast<unsigned long long>(call.k_stride),
                              static_cast<unsigned long long>(call.v_stride),
                              static_cast<unsigned>(attention.groups),
                              static_cast<unsigned>(past),
                              static_cast<unsigned>(cut.splits),
                              static_cast<unsigned>(cut.tokens),
                              attention.scale,
                              ScalesOf(attention, call),
                              nullptr};
  const bool counted = AreCounted(attention, attends, call, attention.heads / attention.groups);
  Launch(attends, {groups, cut.splits, heads, counted}, &params, stream);
}

// The first entry point that attends, in tiles or without, whose shared memory the GPU has; null for none.
const Variant* AttentionCudaKernel::Fitting(bool in_tiles) const {
  const std::vector<Variant>& variants = kernel().variants;
  for (std::size_t k = 0; k + 1 < variants.size(); ++k) {
    if (variants[k].shared <= launcher_.device().shared && InTiles(variants[k]) == in_tiles) return &variants[k];
  }
  return nullptr;
}

const Variant& AttentionCudaKernel::Attending(const TokenAttention& attention, const AttentionCall& call) const {
  const Variant* const tiles = Fitting(true);
  const Variant* const lanes = Fitting(false);
  const bool long_one = lanes == nullptr || IsLong(attention, call);
  const Variant* const variant = tiles != nullptr && long_one ? tiles : lanes;
  if (variant == nullptr) throw Error("no variant of an attention behind a cache fits this GPU");
  return *variant;
}

// Entry points of older files take the first part of the parameters.
template <typename Params>
void AttentionCudaKernel::Launch(const Variant& attends, const Blocks& blocks, Params* params, Stream stream) const {
  const auto k = static_cast<std::size_t>(&attends - kernel().variants.data());
  const bool splits = blocks.splits > 1;
  if (blocks.counted && splits) params->ended = counters_.Of(stream, blocks.shared);
  auto* const block = reinterpret_cast<unsigned char*>(params);
  launcher_.Launch(k, static_cast<unsigned>(blocks.shared * blocks.splits), block, stream);
  if (Joins(attends) && (!splits || params->ended != nullptr)) return;
  launcher_.Launch(kernel().variants.size() - 1, static_cast<unsigned>(blocks.rows), block, stream);
}

void AttentionCudaKernel::LaunchMasked(const TokenAttention& attention, const AttentionCall& call,
                                       OrtKernelContext* context, Stream stream) const {
  const std::int64_t heads = attention.heads / attention.groups;
  const std::uint64_t chunks = CeilDiv(attention.tokens * heads, attention.rows);
  const auto groups = static_cast<std::uint64_t>(call.batch * attention.groups);
  const auto keys = static_cast<std::uint64_t>(call.keys);
  const Variant& attends = Attending(attention, call);
  const bool two = !InTiles(attends) && (attention.codes || IsLong(attention, call));
  const Splits cut(keys, groups * chunks, launcher_.device().multiprocessors, two ? kBlocksOfLanes : kBlocksOfTiles,
                   InTurn(attends));
  const std::uint64_t rows_of_all = groups * chunks * static_cast<std::uint64_t>(attention.rows);
  CallScratch scratch(allocator_, context);
  MaskedAttentionParams params{call.q,
                               call.k,
                               call.v,
                               call.past_k,
                               call.past_v,
                               call.mask,
                               reinterpret_cast<const long long*>(call.slots),
                               call.present_k,
                               call.present_v,
                               call.output,
                               static_cast<float*>(scratch.Of(PartBytes(attends, rows_of_all, cut, attention.width))),
                               static_cast<unsigned long long>(call.mask_sequence),
                               static_cast<unsigned long long>(call.mask_head),
                               static_cast<unsigned long long>(call.mask_token),
                               static_cast<unsigned>(attention.tokens),
                               static_cast<unsigned>(heads),
                               static_cast<unsigned>(attention.groups),
                               static_cast<unsigned>(call.past),
                               static_cast<unsigned>(keys),
                               static_cast<unsigned>(chunks),
                               static_cast<unsigned>(cut.splits),
                               static_cast<unsigned>(cut.tokens),
                               attention.scale,
                               ScalesOf(attention, call),
                               nullptr};
  Launch(attends, {groups * chunks, cut.splits, rows_of_all, AreCounted(attention, attends, call, attention.rows)},
         &params, stream);
}

}  // namespace onnxopt::cuda
