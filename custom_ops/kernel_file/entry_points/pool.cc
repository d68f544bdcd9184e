#include "kernel_file/entry_points/pool.h"

#include "kernel_file/fields.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostTile = 16;
constexpr unsigned kAccessBytes = 16;

}  // namespace

Variant ReadPoolVariant(const JsonReader& json, const Pool& pool) {
  Variant variant = ReadVariant(json);
  if (variant.index != 32) json["index"].Fail("is not 32");
  if (variant.vector * Size(pool.dtype()) > kAccessBytes) json["vector"].Fail("is wider than one access");
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  variant.waits = json["waits"].Flag();
  const auto side = [&](const char* field) { return static_cast<unsigned>(json[field].Number(1, kMostTile)); };
  variant.shape.Set(PoolTile{side("down"), side("across")});
  return variant;
}

}  // namespace onnxopt
