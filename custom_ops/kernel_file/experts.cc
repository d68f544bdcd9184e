#include "kernel_file/experts.h"

#include <limits>
#include <string>

#include "kernel_file/fields.h"
#include "kernel_file/pointwise.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostExperts = 1024;
constexpr std::uint64_t kMostChosen = 32;
constexpr std::uint64_t kMostSize = 1 << 20;
constexpr std::uint64_t kMostSide = 1024;                                      // of a tile
constexpr std::uint64_t kMostRows = std::numeric_limits<std::int32_t>::max();  // of an expert
constexpr std::uint64_t kMostShared = 64 << 10;  // bytes of shared memory that a block can have on every GPU
constexpr std::uint64_t kAccessBytes = 16;

}  // namespace

Experts ReadExperts(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs) {
  Experts experts;
  const bool biased[2] = {json.Has("first_bias"), json.Has("second_bias")};
  experts.inputs = kExpertsPlain + (biased[0] ? 1 : 0) + (biased[1] ? 1 : 0);
  if (inputs.size() != experts.inputs) json["inputs"].Fail("are not " + std::to_string(experts.inputs));
  if (outputs.size() != 1) json["outputs"].Fail("are not one");
  experts.dtype = outputs[0];
  experts.factors = inputs[kExpertsFactors];
  const bool stored =
      experts.dtype == Dtype::kFloat16 || experts.dtype == Dtype::kBfloat16 || experts.dtype == Dtype::kFloat32;
  if (!stored) json["outputs"].Fail("are no floats of 16 or 32 bits");
  for (const std::size_t k : {kExpertsX, kExpertsWeights, kExpertsWeights + 1}) {
    if (inputs[k] != experts.dtype) json["inputs"].Fail("are not all of the output's dtype");
  }
  std::size_t next = kExpertsPlain;
  for (const int k : {0, 1}) {
    if (!biased[k]) continue;
    const JsonReader& position = json[k == 0 ? "first_bias" : "second_bias"];
    if (position.Number(0, kExpertsInputs) != next) position.Fail("is not the next input");
    if (inputs[next] != experts.dtype) json["inputs"].Fail("are not all of the output's dtype");
    experts.bias[k] = next++;
  }
  if (inputs[kExpertsIds] != Dtype::kInt64) json["inputs"].Fail("have ids that are not int64");
  if (experts.factors != experts.dtype && experts.factors != Dtype::kFloat32) {
    json["inputs"].Fail("have factors of another dtype than float32 and the output's");
  }
  const auto number = [&](const char* field, std::uint64_t most) {
    return static_cast<std::int64_t>(json[field].Number(1, most));
  };
  experts.experts = number("experts", kMostExperts);
  experts.chosen = number("chosen", kMostChosen);
  experts.columns = number("columns", kMostSize);
  experts.hidden = number("hidden", kMostSize);
  for (const char* field : {"columns", "hidden"}) {
    if (json[field].Number(1, kMostSize) * Size(experts.dtype) % kAccessBytes != 0) {
      json[field].Fail("is no multiple of an access");
    }
  }
  experts.program = ReadProgram(json["program"]);
  const Program& program = experts.program;
  if (program.index) json["program"].Fail("has index operations");
  const std::vector<Dtype> sums(program.inputs.size(), Dtype::kFloat32);
  if (sums.empty() || sums.size() > 2 || program.inputs != sums || program.outputs != outputs) {
    json["program"].Fail("does not compute one result of its dtype from one or two float32");
  }
  experts.interleaved = json.Has("interleaved") && json["interleaved"].Flag();
  if (experts.interleaved && !experts.gated()) json["interleaved"].Fail("is set for a program of one float32");
  return experts;
}

Variant ReadExpertsVariant(const JsonReader& json) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMostShared));
  const auto side = [&](const char* field) { return json[field].Number(0, kMostSide); };
  variant.shape.Set(
      ExpertsTileShape{side("rows"), side("columns"), side("depth"), json["least_rows"].Number(0, kMostRows)});
  return variant;
}

void CheckExpertsVariants(const JsonReader& json, const std::vector<Variant>& variants) {
  if (variants.size() != kExpertsLaunches) json.Fail("are not the " + std::to_string(kExpertsLaunches) + " launches");
  for (std::size_t k = 0; k < variants.size(); ++k) {
    const auto& tile = variants[k].shape.As<ExpertsTileShape>();
    bool multiplies = k < kExpertsActivate;
    for (const ExpertsForm& form : kExpertsForms) multiplies = multiplies && k != form.route;
    // A half of the columns is 16 for each warp.
    bool good = tile.rows == 0;
    if (multiplies) good = tile.rows >= 16 && tile.columns >= 32 && tile.columns % 32 == 0 && tile.depth >= 16;
    if (!good) json.Fail("have sides of tiles that do not fit their launches");
  }
}

}  // namespace onnxopt
