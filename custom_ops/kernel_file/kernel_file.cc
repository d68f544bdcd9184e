#include "kernel_file/kernel_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "kernel_file/fields.h"
#include "support/sha256.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kSchema = 2;
constexpr std::uint64_t kMaxSchema = std::numeric_limits<std::uint32_t>::max();

const KindReader& ReadKind(const JsonReader& json, const FindReader& find) {
  const KindReader* const reader = find(json.Text());
  if (reader == nullptr) json.Fail("is \"" + json.Text() + "\", which this library does not know");
  return *reader;
}

Kernel ReadKernel(const JsonReader& json, bool has_fatbin, const FindReader& find) {
  Kernel kernel;
  kernel.name = ReadIdentifier(json["name"]);
  const KindReader& reader = ReadKind(json["kind"], find);
  kernel.kind = reader.name();
  kernel.cpu = json["cpu"].Flag();
  kernel.inputs = ReadDtypes(json["inputs"]);
  kernel.outputs = ReadDtypes(json["outputs"]);
  reader.ReadMeaning(json, &kernel);
  json["variants"].Each([&](const JsonReader& v) { kernel.variants.push_back(reader.ReadVariant(v, kernel)); });
  reader.CheckVariants(json["variants"], has_fatbin, &kernel);
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

KernelFile ReadKernels(const JsonReader& json, const std::string& path, const FindReader& find) {
  const std::uint64_t schema = json["schema"].Number(0, kMaxSchema);
  if (schema != kSchema) {
    json["schema"].Fail("is " + std::to_string(schema) + ", and this library reads schema " + std::to_string(kSchema));
  }
  KernelFile file;
  file.path = path;
  const JsonReader fatbin = json["fatbin"];
  if (!fatbin.value().is_null()) file.fatbin = ReadFatbin(fatbin, path.substr(0, path.rfind('/')));
  std::set<std::string> names;
  json["kernels"].Each([&](const JsonReader& k) {
    file.kernels.push_back(ReadKernel(k, !file.fatbin.empty(), find));
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

std::optional<KernelFile> ReadKernelFile(const std::string& path, const FindReader& find) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) return std::nullopt;
  const std::string advice = "; restore the artifact folder or write it again with onnxopt";
  try {
    const std::vector<char> text = ReadFile(path);
    const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end());
    return ReadKernels(JsonReader(json, ""), path, find);
  } catch (const nlohmann::json::exception& e) {
    throw Error(path + ": not valid JSON: " + Ascii(e.what()) + advice);
  } catch (const Error& e) {
    throw Error(path + ": " + e.what() + advice);
  }
}

}  // namespace onnxopt
