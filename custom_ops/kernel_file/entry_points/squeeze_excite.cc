#include "kernel_file/entry_points/squeeze_excite.h"

#include <string>

#include "kernel_file/entry_points/depthwise.h"
#include "kernel_file/fields.h"

namespace onnxopt {
namespace {

constexpr unsigned kMostRows = 4;  // of a block, for which it has shared memory

}  // namespace

Variant ReadSqueezeExciteVariant(const JsonReader& json, const SqueezeExcite& meaning) {
  if (json.Has("layout")) {
    if (!meaning.depthwise) json["layout"].Fail("is of a depthwise convolution, which the kernel has none of");
    return ReadDepthwiseVariant(json, *meaning.depthwise);
  }
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  if (variant.unroll > kMostRows) json["unroll"].Fail("is above " + std::to_string(kMostRows));
  return variant;
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const SqueezeExcite& meaning,
                      std::vector<Variant>* variants) {
  if (!has_fatbin) return;
  const std::size_t products = meaning.depthwise ? kSqueezeExciteMap : kSqueezeExciteFold;
  bool ordered = meaning.depthwise ? variants->size() > products : variants->size() == products;
  for (std::size_t k = 0; k < variants->size(); ++k) {
    ordered = ordered && (*variants)[k].shape.Is<DepthwiseShape>() == (k >= products);
  }
  if (!ordered) json.Fail("are not the products, and behind them those of the map");
}

}  // namespace onnxopt
