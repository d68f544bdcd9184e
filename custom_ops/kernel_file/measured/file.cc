#include "kernel_file/measured/file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "support/file.h"
#include "support/library_path.h"
#include "support/sealed_json.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kSchema = 2;
constexpr const char* kAdvice = "; remove the file, it only makes kernels faster";

void Read(const std::string& path, const ReadEntry& read) {
  std::optional<std::string> text;
  try {
    text = ReadFile(path, kMaxJson, kLibraryLimit);
  } catch (const Error& e) {
    throw Error(std::string(e.what()) + kAdvice);
  }
  if (text) ReadMeasured(*text, path, read);
}

}  // namespace

void ReadMeasured(const std::string& text, const std::string& path, const ReadEntry& read) {
  try {
    const nlohmann::json json = ReadSealedJson(text, kSchema);
    JsonReader(json, "")["entries"].Each(read);
  } catch (const Error& e) {
    throw Error(path + ": " + e.what() + kAdvice);
  }
}

std::string SealedMeasured(const nlohmann::json& entries) {
  return SealedJson({{"schema", kSchema}, {"entries", entries}});
}

MeasuredFile::MeasuredFile(const char* name, const char* variable, const ReadEntry& read) {
  Read(BesideThisLibrary(name), read);
  const char* path = std::getenv(variable);
  if (path == nullptr || *path == '\0') return;
  path_ = path;
  Read(path_, read);
}

void MeasuredFile::Write(const nlohmann::json& entries) const {
  const std::string temporary = path_ + ".new";
  {
    std::ofstream stream(temporary, std::ios::binary);
    stream << SealedMeasured(entries);
    if (!stream.flush()) throw Error("cannot write " + temporary + ": " + std::strerror(errno));
  }
  if (std::rename(temporary.c_str(), path_.c_str()) != 0) {
    throw Error("cannot write " + path_ + ": " + std::strerror(errno));
  }
}

double MeasuredFile::Microseconds(const JsonReader& json) {
  if (!json.value().is_number()) json.Fail("is not a number");
  return json.value().get<double>();
}

}  // namespace onnxopt
