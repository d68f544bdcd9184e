// Attention kernels in kernels.json.
#pragma once

#include "kernel_file/kernel.h"
#include "program/generated/attention.h"
#include "support/json_reader.h"

namespace onnxopt {

constexpr std::size_t kAttentionLaunches = 2;  // at most: the last entry point joins, one of the others attends

// What an entry point that attends has beside other kinds' ones.
struct AttentionShape {
  std::uint64_t stages;  // tiles of keys in shared memory, for tensor cores; 0 without
  bool registers;        // the one tile is in registers instead; in no entry point of older files
  // Blocks take tiles in turn, and the last one joins where it is given a counter; no entry point of older files does.
  bool joins;
};

Variant ReadAttentionVariant(const JsonReader& json, const TokenAttention& attention);

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const TokenAttention& attention,
                      std::vector<Variant>* variants);

}  // namespace onnxopt
