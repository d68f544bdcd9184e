#include "kernel_file/entry_points/experts.h"

#include <limits>
#include <string>

#include "kernel_file/fields.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostSide = 1024;                                      // of a tile
constexpr std::uint64_t kMostRows = std::numeric_limits<std::int32_t>::max();  // of an expert
constexpr std::uint64_t kMostShared = 64 << 10;  // bytes of shared memory that a block can have on every GPU

}  // namespace

Variant ReadExpertsVariant(const JsonReader& json, const Experts& /*experts*/) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMostShared));
  const auto side = [&](const char* field) { return json[field].Number(0, kMostSide); };
  variant.shape.Set(
      ExpertsTileShape{side("rows"), side("columns"), side("depth"), json["least_rows"].Number(0, kMostRows)});
  return variant;
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Experts& /*experts*/,
                      std::vector<Variant>* variants) {
  if (!has_fatbin) return;
  if (variants->size() != kExpertsLaunches) json.Fail("are not the " + std::to_string(kExpertsLaunches) + " launches");
  for (std::size_t k = 0; k < variants->size(); ++k) {
    const auto& tile = (*variants)[k].shape.As<ExpertsTileShape>();
    bool multiplies = k < kExpertsActivate;
    for (const ExpertsForm& form : kExpertsForms) multiplies = multiplies && k != form.route;
    // A half of the columns is 16 for each warp.
    bool good = tile.rows == 0;
    if (multiplies) good = tile.rows >= 16 && tile.columns >= 32 && tile.columns % 32 == 0 && tile.depth >= 16;
    if (!good) json.Fail("have sides of tiles that do not fit their launches");
  }
}

}  // namespace onnxopt
