// Squeeze-excites in kernels.json.
#pragma once

#include <vector>

#include "kernel_file/kernel.h"
#include "program/generated/squeeze_excite.h"
#include "support/json_reader.h"

namespace onnxopt {

// What the entry points do, in their order: the products of few rows and of many, with rows a block as their `unroll`;
// then, for a map of a depthwise convolution, adding the sums of tiles; then those of the convolution.
constexpr std::size_t kSqueezeExciteFew = 0;
constexpr std::size_t kSqueezeExciteMany = 1;
constexpr std::size_t kSqueezeExciteFold = 2;
constexpr std::size_t kSqueezeExciteMap = 3;

Variant ReadSqueezeExciteVariant(const JsonReader& json, const SqueezeExcite& meaning);

// Throws Error where the entry points, which lie at `json`, are not those above.
void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const SqueezeExcite& meaning,
                      std::vector<Variant>* variants);

}  // namespace onnxopt
