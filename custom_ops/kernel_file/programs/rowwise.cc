#include "kernel_file/programs/rowwise.h"

#include <string_view>
#include <utility>

#include "kernel_file/fields.h"
#include "kernel_file/kind_reader.h"
#include "kernel_file/programs/indexing.h"
#include "kernel_file/programs/pointwise.h"
#include "program/programs/rowwise_params.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMaxSlot = 65535;
constexpr std::uint64_t kMaxRow = std::uint64_t{1} << 40U;
constexpr std::uint64_t kMaxShared = std::uint64_t{1} << 20U;

Piece ReadPiece(const JsonReader& json) {
  Piece piece;
  json["reads"].Each(
      [&](const JsonReader& slot) { piece.reads.push_back(static_cast<std::uint32_t>(slot.Number(0, kMaxSlot))); });
  piece.program = ReadProgram(json);
  if (piece.program.index) json["index"].Fail("is there, where only a whole kernel has one");
  return piece;
}

std::optional<Piece> ReadOptionalPiece(const JsonReader& json) {
  if (json.value().is_null()) return std::nullopt;
  return ReadPiece(json);
}

View ReadView(const JsonReader& json) {
  View view;
  view.rank = json["rank"].Number(1, kMaxRank);
  const JsonReader target = json["target"];
  if (target.value().is_null()) return view;
  std::size_t open = 0;
  target.Each([&](const JsonReader& dim) {
    if (!dim.value().is_number_integer()) dim.Fail("is not an integer");
    const auto extent = dim.value().get<std::int64_t>();
    if (extent < -1) dim.Fail("is below -1");
    open += extent == -1 ? 1 : 0;
    view.target.push_back(extent);
  });
  if (open > 1 || view.target.empty()) target.Fail("has no dims, or several of -1");
  return view;
}

Stage ReadStage(const JsonReader& json) {
  Stage stage;
  stage.element = ReadPiece(json["element"]);
  json["reductions"].Each([&](const JsonReader& name) {
    Reduction reduction{};
    if (!ParseReduction(name.Text(), &reduction)) name.Fail("is \"" + name.Text() + "\", which is no reduction");
    stage.reductions.push_back(reduction);
  });
  stage.row = ReadOptionalPiece(json["row"]);
  return stage;
}

Layout ReadLayout(const JsonReader& json) {
  constexpr std::pair<std::string_view, Layout> kLayouts[] = {{"held", Layout::kHeld},
                                                              {"ragged", Layout::kRagged},
                                                              {"piped", Layout::kPiped},
                                                              {"ring", Layout::kRing},
                                                              {"looped", Layout::kLooped},
                                                              {"split", Layout::kSplit},
                                                              {"split_strided", Layout::kSplitStrided},
                                                              {"strided", Layout::kStrided}};
  const std::string name = json.Text();
  for (const auto& [word, layout] : kLayouts) {
    if (name == word) return layout;
  }
  json.Fail("is \"" + name + "\", which is no layout");
}

}  // namespace

RowProgram ReadRowProgram(const JsonReader& json) {
  RowProgram program;
  program.inputs = ReadDtypes(json["inputs"]);
  program.outputs = ReadDtypes(json["outputs"]);
  std::vector<std::size_t> axes;
  json["axes"].Each([&](const JsonReader& axis) { axes.push_back(axis.Number(0, kMaxRank)); });
  if (axes.size() != 2) json["axes"].Fail("does not have two numbers");
  program.first = axes[0];
  program.last = axes[1];
  json["views"].Each([&](const JsonReader& view) { program.views.push_back(ReadView(view)); });
  json["operands"].Each([&](const JsonReader& o) {
    program.operands.push_back({o["view"].Number(0, 1), o["trailing"].Number(0, kMaxRank), o["row"].Flag()});
  });
  json["results"].Each([&](const JsonReader& r) {
    Result result{};
    if (!ParseForm(r["form"].Text(), &result.form)) r["form"].Fail("is no form of an output");
    result.view = r["view"].Number(0, 1);
    program.results.push_back(result);
  });
  json["stages"].Each([&](const JsonReader& stage) { program.stages.push_back(ReadStage(stage)); });
  program.output = ReadOptionalPiece(json["output"]);
  program.row_output = ReadOptionalPiece(json["row_output"]);
  if (json.Has("index")) {
    program.index = ReadIndexing(json["index"]);
    program.domain = ReadExtents(json["domain"]);
  }
  try {
    program.Verify();
  } catch (const Error& e) {
    json.Fail(e.what());
  }
  return program;
}

Variant ReadRowVariant(const JsonReader& json, const RowProgram& program, std::size_t launches) {
  Variant variant = ReadVariant(json);
  RowShape shape;
  shape.layout = ReadLayout(json["layout"]);
  shape.lanes = static_cast<unsigned>(json["lanes"].Number(1, 16384));
  variant.cluster = static_cast<unsigned>(json["cluster"].Number(1, 16));
  shape.columns = json["columns"].Number(0, kMaxRow);
  variant.shared = static_cast<unsigned>(json["shared"].Number(0, kMaxShared));
  shape.launch = static_cast<unsigned>(json["launch"].Number(0, launches - 1));
  if (variant.threads % 32 != 0) json["threads"].Fail("is not a multiple of 32");
  if (variant.threads * variant.cluster % shape.lanes != 0) json["lanes"].Fail("does not divide the threads");
  const bool whole = variant.cluster > 1 || shape.layout == Layout::kPiped || shape.layout == Layout::kRing;
  if (whole && shape.lanes != variant.threads * variant.cluster) {
    json["lanes"].Fail("are not those of the cluster");
  }
  const bool strided = shape.layout == Layout::kStrided || shape.layout == Layout::kSplitStrided;
  if (strided && (variant.cluster > 1 || shape.lanes > variant.threads)) {
    json["lanes"].Fail("are not those of a block");
  }
  if (variant.modes.size() != program.leaves() || variant.modes.find_first_not_of("FKDC*") != std::string::npos) {
    json["modes"].Fail("is \"" + variant.modes + "\", not one of the letters FKDC* for each of " +
                       std::to_string(program.leaves()) + " inputs");
  }
  const std::size_t bytes =
      sizeof(Parts) + cuda::RowParamsSize(variant.index, program.leaves(), program.outputs.size());
  if (bytes > cuda::kMaxParams) json.Fail("has too many inputs and outputs for a kernel's parameters");
  variant.shape.Set(shape);
  return variant;
}

void CheckPasses(const std::vector<Variant>& variants, std::size_t passes, const JsonReader& json) {
  std::size_t pass = 0;  // the one that must come next, 0 where a new variant may begin
  for (const Variant& variant : variants) {
    const RowShape& shape = variant.shape.As<RowShape>();
    const bool split = IsSplit(shape.layout);
    if (shape.launch != pass || (pass > 0 && !split)) json.Fail("have a split variant whose passes are not all there");
    pass = split ? (pass + 1) % passes : 0;
  }
  if (pass != 0) json.Fail("have a split variant whose passes are not all there");
}

Variant ReadRowwiseVariant(const JsonReader& json, const RowProgram& program) {
  return ReadRowVariant(json, program, program.launches());
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const RowProgram& program,
                      std::vector<Variant>* variants) {
  CheckPasses(*variants, program.launches(), json);
  CheckNotEmpty(json, has_fatbin, *variants);
}

}  // namespace onnxopt
