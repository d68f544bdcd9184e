// Pools in kernels.json.
#pragma once

#include "kernel_file/kernel.h"
#include "program/pool.h"
#include "support/json_reader.h"

namespace onnxopt {

// A thread computes so many neighbouring outputs.
struct PoolTile {
  unsigned down;
  unsigned across;
};

// Its shape is a PoolTile.
Variant ReadPoolVariant(const JsonReader& json, const Pool& pool);

}  // namespace onnxopt
