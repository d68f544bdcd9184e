#include "cuda/attention.h"

#include <algorithm>
#include <limits>

#include "attention/token_attention_abi.h"
#include "call/attention.h"

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kBlocksOfAll = 2;   // blocks a multiprocessor that the tokens are cut into, all groups together
constexpr std::uint64_t kLeastTokens = 32;  // that a block takes at once
constexpr std::uint64_t kAccessBytes = 16;

bool Aligned(const AttentionCall& call) {
  std::uintptr_t all = 0;
  for (const void* data : {call.q, call.k, call.v, call.past_k, call.past_v}) {
    all |= reinterpret_cast<std::uintptr_t>(data);
  }
  for (const void* data : {call.present_k, call.present_v}) all |= reinterpret_cast<std::uintptr_t>(data);
  return all % kAccessBytes == 0;
}

}  // namespace

void TokenAttentionCudaKernel::Compute(OrtKernelContext* context) const {
  const TokenAttention& attention = kernel().meaning.As<TokenAttention>();
  const AttentionCall call = OpenCall(attention, context);
  if (call.batch == 0) return;
  if (!Aligned(call)) throw Error("a cache of keys or values is not aligned to 16 bytes");
  if (call.past >= std::numeric_limits<std::int32_t>::max()) throw Error("a cache of 2^31 tokens or more");
  const Stream stream = launcher_.Enter(context);
  const auto past = static_cast<std::uint64_t>(call.past);
  const auto groups = static_cast<std::uint64_t>(call.batch * attention.groups);
  const std::uint64_t blocks = kBlocksOfAll * launcher_.device().multiprocessors;
  const std::uint64_t wanted = std::clamp<std::uint64_t>(blocks / groups, 1, kMaxSplits);
  const std::uint64_t least = (past + wanted - 1) / wanted;
  const std::uint64_t tokens = std::max((least + kLeastTokens - 1) / kLeastTokens, std::uint64_t{1}) * kLeastTokens;
  const std::uint64_t splits = std::max<std::uint64_t>((past + tokens - 1) / tokens, 1);
  const auto heads = static_cast<std::uint64_t>(call.batch * attention.heads);
  const auto part = static_cast<std::uint64_t>(attention.width + 2) * sizeof(float);
  CallScratch scratch(allocator_, context);
  TokenAttentionParams params{call.q,
                              call.k,
                              call.v,
                              call.past_k,
                              call.past_v,
                              call.present_k,
                              call.present_v,
                              call.output,
                              static_cast<float*>(scratch.Of(heads * splits * part)),
                              static_cast<unsigned long long>(call.q_stride),
                              static_cast<unsigned long long>(call.k_stride),
                              static_cast<unsigned long long>(call.v_stride),
                              static_cast<unsigned>(attention.groups),
                              static_cast<unsigned>(past),
                              static_cast<unsigned>(splits),
                              static_cast<unsigned>(tokens),
                              attention.scale};
  auto* const block = reinterpret_cast<unsigned char*>(&params);
  launcher_.Launch(0, static_cast<unsigned>(groups * splits), block, stream);
  launcher_.Launch(1, static_cast<unsigned>(heads), block, stream);
}

}  // namespace onnxopt::cuda
