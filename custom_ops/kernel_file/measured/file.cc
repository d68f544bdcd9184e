#include "kernel_file/measured/file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "support/library_path.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kSchema = 1;

void Read(const std::string& path, const std::function<void(const JsonReader&)>& read) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return;
  const std::string advice = "; remove the file, it only makes kernels faster";
  try {
    const nlohmann::json json = nlohmann::json::parse(stream);
    const JsonReader root(json, "");
    root["schema"].Number(kSchema, kSchema);
    root["entries"].Each(read);
  } catch (const nlohmann::json::exception&) {
    throw Error(path + ": not valid JSON" + advice);
  } catch (const Error& e) {
    throw Error(path + ": " + e.what() + advice);
  }
}

}  // namespace

MeasuredFile::MeasuredFile(const char* name, const char* variable, const std::function<void(const JsonReader&)>& read) {
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
    stream << nlohmann::json{{"schema", kSchema}, {"entries", entries}}.dump(1) << "\n";
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
