// Pointwise kernels in kernels.json.
#pragma once

#include "device/access_modes.h"
#include "kernel_file/kernel.h"
#include "program/programs/pointwise.h"
#include "support/json_reader.h"

namespace onnxopt {

// Of inputs that are read along the columns of a tile.
constexpr const char kModesAlong[] = {access_mode::kColumn, access_mode::kColumn8, access_mode::kColumn16,
                                      access_mode::kColumnShifted, 0};

// What only entry points of pointwise kernels have.
struct Tile {
  unsigned rows = 0;  // 0 where the variant has no tile
  std::uint64_t columns = 0;
  bool whole = false;   // a tile has all rows of the domain
  bool slides = false;  // a tile begins in each column with the vector that its first row lies in
};

// The fields of a program, which lie in `json` itself; verified.
Program ReadProgram(const JsonReader& json);

Variant ReadPointwiseVariant(const JsonReader& json, const Program& program);

}  // namespace onnxopt
