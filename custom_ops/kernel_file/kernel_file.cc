#include "kernel_file/kernel_file.h"

#include <limits>
#include <set>

#include "kernel_file/fields.h"
#include "support/file.h"
#include "support/sealed_json.h"
#include "support/sha256.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kSchema = 4;
constexpr std::uint64_t kMaxFatbin = std::uint64_t{1} << 30U;  // bytes; folders of models have tens of megabytes
constexpr char kDomain[] = "onnxopt";                          // of files that name no other

const KindReader& ReadKind(const JsonReader& json, const FindReader& find) {
  const KindReader* const reader = find(json.Text());
  if (reader == nullptr) json.Fail("is \"" + json.Text() + "\", which this library does not know");
  return *reader;
}

// The shape of every input of a kernel.
std::vector<Shape> ReadShapes(const JsonReader& json, std::size_t inputs) {
  std::vector<Shape> shapes;
  json.Each([&](const JsonReader& dims) {
    Shape shape{};
    dims.Each([&](const JsonReader& dim) {
      if (shape.rank == kMaxRank) dims.Fail("has too many dims");
      shape.dims[shape.rank++] = static_cast<std::int64_t>(dim.Number(1, std::numeric_limits<std::int32_t>::max()));
    });
    shapes.push_back(shape);
  });
  if (shapes.size() != inputs) json.Fail("is not a shape for each input");
  return shapes;
}

Kernel ReadKernel(const JsonReader& json, bool has_fatbin, const FindReader& find) {
  Kernel kernel;
  kernel.name = ReadIdentifier(json["name"]);
  const KindReader& reader = ReadKind(json["kind"], find);
  kernel.kind = reader.name();
  kernel.cpu = json["cpu"].Flag();
  if (kernel.cpu && !reader.HasCpuKernels()) json["cpu"].Fail("is true, and there are no CPU kernels of this kind");
  kernel.inputs = ReadDtypes(json["inputs"]);
  kernel.outputs = ReadDtypes(json["outputs"]);
  reader.ReadMeaning(json, &kernel);
  if (json.Has("usual")) {
    json["usual"].Each(
        [&](const JsonReader& shapes) { kernel.usual.push_back(ReadShapes(shapes, kernel.inputs.size())); });
  }
  json["variants"].Each([&](const JsonReader& v) { kernel.variants.push_back(reader.ReadVariant(v, kernel)); });
  reader.CheckVariants(json["variants"], has_fatbin, &kernel);
  return kernel;
}

std::vector<char> ReadFatbin(const JsonReader& json, const std::string& folder) {
  const std::string name = json["file"].Text();
  if (name.find('/') != std::string::npos) json["file"].Fail("leaves the folder of kernels.json");
  const std::uint64_t size = json["bytes"].Number(1, kMaxFatbin);
  const std::string expected = json["sha256"].Text();
  if (Printable(name) != name) json["file"].Fail("is \"" + name + "\", which is no file's name");
  const std::string path = folder + "/" + name;
  const std::optional<std::string> file = ReadFile(path, size, "kernels.json says");
  if (!file) throw Error("cannot read " + path + ": there is no such file");
  const std::string& bytes = *file;
  if (bytes.size() != size) {
    throw Error(path + " has " + std::to_string(bytes.size()) + " bytes where kernels.json says " +
                std::to_string(size));
  }
  const std::string digest = Sha256(bytes.data(), bytes.size());
  if (digest != expected) {
    throw Error(path + " has sha256 " + digest + " where kernels.json says " + Printable(expected));
  }
  return {bytes.begin(), bytes.end()};
}

// The digest behind the domain's name, which tells the kernels of several artifacts apart.
bool IsDigest(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string ReadDomain(const JsonReader& root) {
  if (!root.Has("domain")) return kDomain;
  const JsonReader json = root["domain"];
  const std::string prefix = std::string(kDomain) + ".";
  const std::string text = json.Text();
  if (text.compare(0, prefix.size(), prefix) != 0 || !IsDigest(text.substr(prefix.size()))) {
    json.Fail("is \"" + text + "\", and not \"" + prefix + "\" with a digest");
  }
  return text;
}

std::vector<std::string> ReadFolders(const JsonReader& root) {
  std::vector<std::string> folders;
  if (!root.Has("folders")) return folders;
  root["folders"].Each([&](const JsonReader& json) {
    const std::string text = json.Text();
    if (!IsDigest(text)) json.Fail("is \"" + text + "\", which is no digest");
    folders.push_back(text);
  });
  return folders;
}

KernelFile ReadKernels(const JsonReader& json, const std::string& path, const FindReader& find) {
  KernelFile file;
  file.path = path;
  file.digest = json["sha256"].Text();
  file.domain = ReadDomain(json);
  file.folders = ReadFolders(json);
  const JsonReader fatbin = json["fatbin"];
  if (!fatbin.value().is_null()) file.fatbin = ReadFatbin(fatbin, path.substr(0, path.rfind('/')));
  std::set<std::string> names;
  json["kernels"].Each([&](const JsonReader& k) {
    file.kernels.push_back(ReadKernel(k, !file.fatbin.empty(), find));
    if (!names.insert(file.kernels.back().name).second) k["name"].Fail("is there twice");
  });
  return file;
}

}  // namespace

std::optional<KernelFile> ReadKernelFile(const std::string& path, const FindReader& find) {
  try {
    const std::optional<std::string> text = ReadFile(path, kMaxJson, kLibraryLimit);
    if (!text) return std::nullopt;
    const nlohmann::json json = ReadSealedJson(*text, kSchema);
    return ReadKernels(JsonReader(json, ""), path, find);
  } catch (const Error& e) {
    throw Error(path + ": " + e.what() + "; restore the artifact folder or write it again with onnxopt");
  }
}

}  // namespace onnxopt
