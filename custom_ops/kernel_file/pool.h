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

// The fields of a pool. Throws Error naming the place of what is not as program/pool.py writes it.
Pool ReadPool(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs);

// Its shape is a PoolTile.
Variant ReadPoolVariant(const JsonReader& json, const Pool& pool);

}  // namespace onnxopt
