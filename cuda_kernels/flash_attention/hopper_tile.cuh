// What a block of an attention by products of warpgroups works on, and where it lies in shared memory.
#pragma once

#include "flash_attention/tile.cuh"

namespace onnxopt {

// kGroups: warpgroups, of 64 queries each. kKeys: that are brought to shared memory together. kStages: places for them.
// kCopier: a warpgroup of its own brings keys and values. kInTurn: warpgroups ask for products one after the other.
// kBlocks: of a multiprocessor.
template <int kWidthOf, int kGroupsOf, int kKeysOf, int kStagesOf, bool kCopierOf, bool kInTurnOf, int kBlocksOf>
struct FlashHopperTile : FlashTile<kWidthOf, kWidthOf, 4 * kGroupsOf, kKeysOf, 1, 16> {
  static constexpr int kGroups = kGroupsOf;
  static constexpr int kStages = kStagesOf;
  static constexpr bool kCopier = kCopierOf;
  static constexpr bool kInTurn = kInTurnOf;
  static constexpr int kBlockThreads = 128 * (kGroups + kCopier);
  // Of a thread: when the block begins, of a copier then, and of the others.
  static constexpr int kBlocks = kBlocksOf;
  static constexpr int kRegisters = 65536 / (kBlocks * kBlockThreads) / 8 * 8;
  static constexpr int kOfCopier = kGroups < 3 && kBlocks == 1 ? 40 : 32;
  static constexpr int kAllowed = ((kGroups + 1) * kRegisters - kOfCopier) / kGroups / 8 * 8;
  static constexpr int kOfOthers = kAllowed < 240 ? kAllowed : 240;
  // In shared memory 64 elements of a head are a row of 128 bytes. A query, key or value has a row in each of kPanels,
  // 64 or kKeys rows apart. The last one ends with zeros up to a step of products.
  static constexpr int kRow = 128;
  static constexpr int kDepthSteps = (kWidthOf + 15) / 16;  // of products of queries and keys
  static constexpr int kPanels = (kWidthOf + 63) / 64;
  static constexpr int kLastParts = 2 * kDepthSteps - 8 * (kPanels - 1);  // of 16 bytes, in a row of the last panel
  // Columns of a product of queries and keys.
  static constexpr int kScoreColumns = kKeysOf <= 128 ? kKeysOf : kKeysOf / 2;
  static constexpr int kTileBytes = kKeysOf * kPanels * kRow;  // of keys, or of values
  // Of a warpgroup's queries, and of its results, which lie there in the end.
  static constexpr int kResultBytes = FlashTile<kWidthOf, kWidthOf, 4, kKeysOf, 1, 16>::kQueryBytes;
  static constexpr int kPanelBytes = 64 * kRow * kPanels;
  static constexpr int kGroupBytes = ((kResultBytes > kPanelBytes ? kResultBytes : kPanelBytes) + 1023) / 1024 * 1024;
  static constexpr int kBarrierBytes = kCopier ? 16 * kStages : 0;
  // The first place that products read is aligned to 1024 bytes.
  static constexpr int kSharedBytes = 1008 + 2 * kStages * kTileBytes + kGroups * kGroupBytes + kBarrierBytes;
  static_assert(kWidthOf % 8 == 0 && kTileBytes % 1024 == 0, "as products read");
  static_assert(kStages >= 1 && !(kInTurn && kGroups == 1), "as the host chose");
};

}  // namespace onnxopt
