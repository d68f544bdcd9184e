#include "kernel_file/kernel_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "kernel_file/fields.h"
#include "kernel_file/indexing.h"
#include "kernel_file/rowwise.h"
#include "kernel_file/scan.h"
#include "program/pointwise_params.h"
#include "support/json_reader.h"
#include "support/sha256.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kSchema = 2;
constexpr std::uint64_t kMaxId = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kMaxInstructions = 65536;
constexpr std::uint64_t kMaxFewRows = 64;
constexpr std::size_t kAttentionLaunches = 2;
constexpr std::size_t kAccessBytes = 16;               // of one load
constexpr const char* kModes = "FSRCTUVWIrctGgXYZz*";  // of accesses, see onnxopt/modes.py

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
  instruction.dtype = json["dtype"].DtypeName();
  json["args"].Each(
      [&](const JsonReader& a) { instruction.args.push_back(static_cast<std::uint32_t>(a.Number(0, kMaxId))); });
  if (json.Has("value") != (instruction.op == Op::kConst) || json.Has("storage") != (instruction.op == Op::kNarrow)) {
    json.Fail("breaks a rule: field value belongs to const, field storage to narrow");
  }
  if (instruction.op == Op::kConst) ReadConstant(json["value"], &instruction);
  if (instruction.op == Op::kNarrow) instruction.storage = json["storage"].DtypeName();
  return instruction;
}

bool IsIdentifier(const std::string& text) {
  const auto word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (const char c : text) {
    if (!word(c)) return false;
  }
  return !text.empty() && !(text[0] >= '0' && text[0] <= '9');
}

std::string ReadIdentifier(const JsonReader& json) {
  const std::string text = json.Text();
  if (!IsIdentifier(text)) json.Fail("is \"" + text + "\", which is no identifier");
  return text;
}

Variant ReadPointwiseVariant(const JsonReader& json, const Program& program) {
  Variant variant = ReadVariant(json);
  if (json.Has("tile")) variant.tile = static_cast<unsigned>(json["tile"].Number(0, kMaxTileSide));
  if (json.Has("tile_columns")) variant.tile_columns = json["tile_columns"].Number(0, kMaxTileSide);
  if (json.Has("whole")) variant.whole = json["whole"].Flag();
  if (json.Has("slides")) variant.slides = json["slides"].Flag();
  if (json.Has("waits")) variant.waits = json["waits"].Flag();
  const bool known = variant.modes.find_first_not_of("Pp", program.accesses()) == std::string::npos &&
                     variant.modes.find_first_not_of(kModes) >= program.accesses();
  if (variant.modes.size() != program.leaves() || !known) {
    json["modes"].Fail("is \"" + variant.modes + "\", not one of the letters " + kModes + " for each of " +
                       std::to_string(program.accesses()) + " inputs and one of Pp for each of " +
                       std::to_string(program.conditions()) + " conditions");
  }
  const bool tiled = variant.tile > 0;
  if ((variant.modes.find_first_of(kModesAlong) != std::string::npos) != tiled || (variant.tile_columns > 0) != tiled ||
      (tiled && variant.index != 32) || (variant.whole && !tiled) || (variant.slides && (!tiled || variant.whole))) {
    json.Fail("has a tile that does not go with its modes and index");
  }
  const std::size_t bytes =
      (variant.tile > 0 ? sizeof(Tiles<cuda::Index32>) : 0) +
      cuda::ParamsSize(variant.index, program.accesses(), program.outputs.size(), program.conditions());
  if (bytes > cuda::kMaxParams) json.Fail("has too many inputs and outputs for a kernel's parameters");
  return variant;
}

Variant ReadFewRowsVariant(const JsonReader& json, const Kernel& kernel) {
  Variant variant = ReadVariant(json);
  variant.rows = static_cast<unsigned>(json["rows"].Number(1, kMaxFewRows));
  variant.columns = json["columns"].Number(1, kWarpThreads);
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  if (variant.vector != kAccessBytes / Size(kernel.gemm.dtype)) json["vector"].Fail("is not 16 bytes");
  if (!kernel.gemm.transpose_b || kernel.gemm.transpose_a) json.Fail("does not go with a product of these transposes");
  return variant;
}

Variant ReadAttentionVariant(const JsonReader& json) {
  Variant variant = ReadVariant(json);
  variant.waits = json["waits"].Flag();
  if (variant.threads % kWarpThreads != 0) json["threads"].Fail("is no multiple of a warp");
  return variant;
}

Kind ReadKind(const JsonReader& json) {
  const std::string text = json.Text();
  if (text == "pointwise") return Kind::kPointwise;
  if (text == "rowwise") return Kind::kRowwise;
  if (text == "gemm") return Kind::kGemm;
  if (text == "attention") return Kind::kAttention;
  if (text == "scan") return Kind::kScan;
  json.Fail("is \"" + text + "\", which this library does not know");
}

void ReadDtypes(const JsonReader& json, std::vector<Dtype>* dtypes) {
  json.Each([&](const JsonReader& dtype) { dtypes->push_back(dtype.DtypeName()); });
}

Kernel ReadKernel(const JsonReader& json, bool has_fatbin) {
  Kernel kernel;
  kernel.name = ReadIdentifier(json["name"]);
  kernel.kind = ReadKind(json["kind"]);
  kernel.cpu = json["cpu"].Flag();
  if (kernel.kind == Kind::kGemm) {
    ReadDtypes(json["inputs"], &kernel.inputs);
    ReadDtypes(json["outputs"], &kernel.outputs);
    kernel.gemm = ReadGemm(json, kernel.inputs, kernel.outputs);
    json["variants"].Each([&](const JsonReader& v) { kernel.variants.push_back(ReadFewRowsVariant(v, kernel)); });
    if (!has_fatbin) kernel.variants.clear();  // cuBLASLt runs them all
    return kernel;
  }
  if (kernel.kind == Kind::kAttention) {
    ReadDtypes(json["inputs"], &kernel.inputs);
    ReadDtypes(json["outputs"], &kernel.outputs);
    kernel.attention = ReadTokenAttention(json, kernel.inputs, kernel.outputs);
    json["variants"].Each([&](const JsonReader& v) { kernel.variants.push_back(ReadAttentionVariant(v)); });
    if (has_fatbin && kernel.variants.size() != kAttentionLaunches) json["variants"].Fail("are not the two launches");
    return kernel;
  }
  if (kernel.kind == Kind::kScan) {
    kernel.scan = ReadScan(json, &kernel.rows);
    kernel.inputs = kernel.rows.inputs;
    kernel.outputs = kernel.rows.outputs;
    json["variants"].Each(
        [&](const JsonReader& v) { kernel.variants.push_back(ReadRowVariant(v, kernel.rows, kScanLaunches)); });
    CheckPasses(kernel.variants, kScanLaunches, json["variants"]);
    if (has_fatbin && kernel.variants.empty()) json["variants"].Fail("is empty although there is a fatbin");
    return kernel;
  }
  const bool rowwise = kernel.kind == Kind::kRowwise;
  if (rowwise) {
    kernel.rows = ReadRowProgram(json);
  } else {
    kernel.program = ReadProgram(json);
  }
  kernel.inputs = rowwise ? kernel.rows.inputs : kernel.program.inputs;
  kernel.outputs = rowwise ? kernel.rows.outputs : kernel.program.outputs;
  json["variants"].Each([&](const JsonReader& v) {
    kernel.variants.push_back(rowwise ? ReadRowVariant(v, kernel.rows, kernel.rows.launches())
                                      : ReadPointwiseVariant(v, kernel.program));
  });
  if (rowwise) CheckPasses(kernel.variants, kernel.rows.launches(), json["variants"]);
  if (has_fatbin && kernel.variants.empty()) json["variants"].Fail("is empty although there is a fatbin");
  return kernel;
}

std::vector<char> ReadFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw Error("cannot read " + path + ": " + std::strerror(errno));
  std::vector<char> bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.bad()) throw Error("cannot read " + path + ": " + std::strerror(errno));
  return bytes;
}

std::vector<char> ReadFatbin(const JsonReader& json, const std::string& folder) {
  const std::string name = json["file"].Text();
  if (name.find('/') != std::string::npos) json["file"].Fail("leaves the folder of kernels.json");
  const std::uint64_t size = json["bytes"].Number(1, std::numeric_limits<std::int64_t>::max());
  const std::string expected = json["sha256"].Text();
  std::vector<char> bytes = ReadFile(folder + "/" + name);
  if (bytes.size() != size) {
    throw Error(folder + "/" + name + " has " + std::to_string(bytes.size()) + " bytes where kernels.json says " +
                std::to_string(size));
  }
  const std::string found = Sha256(bytes.data(), bytes.size());
  if (found != expected) {
    throw Error(folder + "/" + name + " has sha256 " + found + " where kernels.json says " + expected);
  }
  return bytes;
}

KernelFile ReadKernels(const JsonReader& json, const std::string& path) {
  const std::uint64_t schema = json["schema"].Number(0, kMaxId);
  if (schema != kSchema) {
    json["schema"].Fail("is " + std::to_string(schema) + ", and this library reads schema " + std::to_string(kSchema));
  }
  KernelFile file;
  file.path = path;
  const JsonReader fatbin = json["fatbin"];
  if (!fatbin.value().is_null()) file.fatbin = ReadFatbin(fatbin, path.substr(0, path.rfind('/')));
  std::set<std::string> names;
  json["kernels"].Each([&](const JsonReader& k) {
    file.kernels.push_back(ReadKernel(k, !file.fatbin.empty()));
    if (!names.insert(file.kernels.back().name).second) k["name"].Fail("is there twice");
  });
  return file;
}

// The parser's messages quote the file, and callers such as Python take messages to be UTF-8.
std::string Ascii(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return text;
}

}  // namespace

Program ReadProgram(const JsonReader& json) {
  Program program;
  json["inputs"].Each([&](const JsonReader& dtype) { program.inputs.push_back(dtype.DtypeName()); });
  json["outputs"].Each([&](const JsonReader& dtype) { program.outputs.push_back(dtype.DtypeName()); });
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

Variant ReadVariant(const JsonReader& json) {
  Variant variant;
  variant.symbol = ReadIdentifier(json["symbol"]);
  if (!json["modes"].value().is_string()) json["modes"].Fail("is not a text");
  variant.modes = json["modes"].value().get<std::string>();
  variant.index = static_cast<unsigned>(json["index"].Number(32, 64));
  variant.vector = static_cast<unsigned>(json["vector"].Number(1, 64));
  variant.unroll = static_cast<unsigned>(json["unroll"].Number(0, 64));
  variant.threads = static_cast<unsigned>(json["threads"].Number(1, 1024));
  if (variant.unroll == 0 && !json.value().contains("layout")) json["unroll"].Fail("is 0");
  if (variant.index != 32 && variant.index != 64) json["index"].Fail("is neither 32 nor 64");
  if ((variant.vector & (variant.vector - 1)) != 0) json["vector"].Fail("is not a power of 2");
  return variant;
}

std::optional<KernelFile> ReadKernelFile(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) return std::nullopt;
  const std::string advice = "; restore the artifact folder or write it again with onnxopt";
  try {
    const std::vector<char> text = ReadFile(path);
    const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end());
    return ReadKernels(JsonReader(json, ""), path);
  } catch (const nlohmann::json::exception& e) {
    throw Error(path + ": not valid JSON: " + Ascii(e.what()) + advice);
  } catch (const Error& e) {
    throw Error(path + ": " + e.what() + advice);
  }
}

}  // namespace onnxopt
