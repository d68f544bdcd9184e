#include "kernel_file/programs/pointwise.h"

#include <cstring>
#include <limits>
#include <string>

#include "kernel_file/fields.h"
#include "kernel_file/programs/indexing.h"
#include "program/programs/pointwise_params.h"

namespace onnxopt {
namespace {

constexpr std::size_t kMaxInstructions = 65536;
constexpr const char* kModes = "FSRCTUVWIrctGgXYZz*";  // of accesses, see device/access_modes.h

template <typename T>
void Put(T value, Instruction* instruction) {
  std::memcpy(instruction->value.data(), &value, sizeof(value));
}

double FloatConstant(const JsonReader& json) {
  if (json.value().is_number()) return json.value().get<double>();
  const std::string text = json.value().is_string() ? json.value().get<std::string>() : "";
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  json.Fail("is not a number, \"inf\", \"-inf\" or \"nan\"");
}

template <typename T>
void PutInteger(const JsonReader& json, Instruction* instruction) {
  const auto& value = json.value();
  bool fits = value.is_number_integer();
  if (fits && value.is_number_unsigned()) {
    fits = value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<T>::max());
  } else if (fits) {
    fits = std::numeric_limits<T>::min() < 0 &&
           value.get<std::int64_t>() >= static_cast<std::int64_t>(std::numeric_limits<T>::min());
  }
  if (!fits) json.Fail("is not an " + std::string(Row(instruction->dtype).name));
  Put(value.get<T>(), instruction);
}

void ReadConstant(const JsonReader& json, Instruction* instruction) {
  switch (instruction->dtype) {
    case Dtype::kFloat32:
      return Put(static_cast<float>(FloatConstant(json)), instruction);
    case Dtype::kFloat64:
      return Put(FloatConstant(json), instruction);
    case Dtype::kInt8:
      return PutInteger<std::int8_t>(json, instruction);
    case Dtype::kInt16:
      return PutInteger<std::int16_t>(json, instruction);
    case Dtype::kInt32:
      return PutInteger<std::int32_t>(json, instruction);
    case Dtype::kInt64:
      return PutInteger<std::int64_t>(json, instruction);
    case Dtype::kUint8:
      return PutInteger<std::uint8_t>(json, instruction);
    case Dtype::kUint16:
      return PutInteger<std::uint16_t>(json, instruction);
    case Dtype::kUint32:
      return PutInteger<std::uint32_t>(json, instruction);
    case Dtype::kUint64:
      return PutInteger<std::uint64_t>(json, instruction);
    case Dtype::kBool:
      return Put(static_cast<std::uint8_t>(json.Flag() ? 1 : 0), instruction);
    default:
      json.Fail("belongs to a constant of a dtype that is not computed in");
  }
}

Instruction ReadInstruction(const JsonReader& json) {
  Instruction instruction;
  const JsonReader op = json["op"];
  if (!ParseOp(op.Text(), &instruction.op)) op.Fail("is \"" + op.Text() + "\", which is no primitive");
  instruction.dtype = ReadDtype(json["dtype"]);
  instruction.args = ReadIds(json["args"]);
  if (json.Has("value") != (instruction.op == Op::kConst) || json.Has("storage") != (instruction.op == Op::kNarrow)) {
    json.Fail("breaks a rule: field value belongs to const, field storage to narrow");
  }
  if (instruction.op == Op::kConst) ReadConstant(json["value"], &instruction);
  if (instruction.op == Op::kNarrow) instruction.storage = ReadDtype(json["storage"]);
  return instruction;
}

}  // namespace

Program ReadProgram(const JsonReader& json) {
  Program program;
  program.inputs = ReadDtypes(json["inputs"]);
  program.outputs = ReadDtypes(json["outputs"]);
  json["code"].Each([&](const JsonReader& i) { program.code.push_back(ReadInstruction(i)); });
  if (program.code.size() > kMaxInstructions) json["code"].Fail("is too long");
  program.results = ReadIds(json["results"]);
  json["depends"].Each([&](const JsonReader& list) { program.depends.push_back(ReadIds(list)); });
  program.ranks = ReadIds(json["ranks"]);
  if (json.Has("index")) program.index = ReadIndexing(json["index"]);
  try {
    program.Verify();
  } catch (const Error& e) {
    json.Fail(e.what());
  }
  return program;
}

Variant ReadPointwiseVariant(const JsonReader& json, const Program& program) {
  Variant variant = ReadVariant(json);
  Tile tile;
  if (json.Has("tile")) tile.rows = static_cast<unsigned>(json["tile"].Number(0, kMaxTileSide));
  if (json.Has("tile_columns")) tile.columns = json["tile_columns"].Number(0, kMaxTileSide);
  if (json.Has("whole")) tile.whole = json["whole"].Flag();
  if (json.Has("slides")) tile.slides = json["slides"].Flag();
  if (json.Has("waits")) variant.waits = json["waits"].Flag();
  const bool valid = variant.modes.find_first_not_of("Pp", program.accesses()) == std::string::npos &&
                     variant.modes.find_first_not_of(kModes) >= program.accesses();
  if (variant.modes.size() != program.leaves() || !valid) {
    json["modes"].Fail("is \"" + variant.modes + "\", not one of the letters " + kModes + " for each of " +
                       std::to_string(program.accesses()) + " inputs and one of Pp for each of " +
                       std::to_string(program.conditions()) + " conditions");
  }
  const bool tiled = tile.rows > 0;
  if ((variant.modes.find_first_of(kModesAlong) != std::string::npos) != tiled || (tile.columns > 0) != tiled ||
      (tiled && variant.index != 32) || (tile.whole && !tiled) || (tile.slides && (!tiled || tile.whole))) {
    json.Fail("has a tile that does not go with its modes and index");
  }
  const std::size_t bytes =
      (tile.rows > 0 ? sizeof(Tiles<cuda::Index32>) : 0) +
      cuda::ParamsSize(variant.index, program.accesses(), program.outputs.size(), program.conditions());
  if (bytes > cuda::kMaxParams) json.Fail("has too many inputs and outputs for a kernel's parameters");
  variant.shape.Set(tile);
  return variant;
}

}  // namespace onnxopt
