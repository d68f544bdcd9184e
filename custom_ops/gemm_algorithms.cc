#include "gemm_algorithms.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "json_reader.h"
#include "library_path.h"

namespace onnxopt::cuda {
namespace {

constexpr char kFile[] = "gemm_algos.json";
constexpr char kTuneVariable[] = "ONNXOPT_GEMM_TUNE";
constexpr std::uint64_t kSchema = 1;
constexpr std::size_t kWords = 8;
constexpr int kHexDigits = 16;

double Microseconds(const JsonReader& json) {
  if (!json.value().is_number()) json.Fail("is not a number");
  return json.value().get<double>();
}

cublaslt::Algorithm ReadAlgorithm(const JsonReader& json) {
  cublaslt::Algorithm algorithm{};
  std::size_t count = 0;
  json.Each([&](const JsonReader& word) {
    const std::string text = word.Text();
    char* end = nullptr;
    const auto value = std::strtoull(text.c_str(), &end, kHexDigits);
    if (text.size() > kHexDigits || *end != '\0') word.Fail("is not a word in hex");
    if (count < kWords) algorithm.data[count] = value;
    ++count;
  });
  if (count != kWords) json.Fail("has " + std::to_string(count) + " words, not " + std::to_string(kWords));
  return algorithm;
}

nlohmann::json WriteAlgorithm(const cublaslt::Algorithm& algorithm) {
  nlohmann::json words = nlohmann::json::array();
  for (const std::uint64_t word : algorithm.data) {
    char text[kHexDigits + 1];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(word));
    words.push_back(text);
  }
  return words;
}

}  // namespace

Algorithms& Algorithms::Get() {
  static auto* const algorithms = new Algorithms;
  return *algorithms;
}

Algorithms::Algorithms() {
  Read(BesideThisLibrary(kFile));
  const char* path = std::getenv(kTuneVariable);
  if (path == nullptr || *path == '\0') return;
  path_ = path;
  Read(path_);
}

void Algorithms::Read(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return;
  try {
    const nlohmann::json json = nlohmann::json::parse(stream);
    const JsonReader root(json, "");
    root["schema"].Number(kSchema, kSchema);
    root["entries"].Each([&](const JsonReader& entry) {
      const Key key{entry["gpu"].Text(), entry["cublaslt"].Number(0, std::numeric_limits<std::int64_t>::max()),
                    entry["product"].Text()};
      known_[key] = {ReadAlgorithm(entry["algorithm"]), Microseconds(entry["microseconds"]),
                     Microseconds(entry["heuristic_microseconds"])};
    });
  } catch (const nlohmann::json::exception&) {
    throw Error(path + ": not valid JSON; remove the file, it only makes products faster");
  } catch (const Error& e) {
    throw Error(path + ": " + e.what() + "; remove the file, it only makes products faster");
  }
}

std::optional<TunedAlgorithm> Algorithms::Find(const std::string& gpu, std::size_t version,
                                               const std::string& product) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = known_.find({gpu, version, product});
  if (found == known_.end()) return std::nullopt;
  return found->second;
}

void Algorithms::Add(const std::string& gpu, std::size_t version, const std::string& product,
                     const TunedAlgorithm& tuned) {
  const std::lock_guard<std::mutex> lock(mutex_);
  known_[{gpu, version, product}] = tuned;
  Write();
}

void Algorithms::Write() const {
  nlohmann::json entries = nlohmann::json::array();
  for (const auto& [key, tuned] : known_) {
    entries.push_back({{"gpu", std::get<0>(key)},
                       {"cublaslt", std::get<1>(key)},
                       {"product", std::get<2>(key)},
                       {"algorithm", WriteAlgorithm(tuned.algorithm)},
                       {"microseconds", tuned.microseconds},
                       {"heuristic_microseconds", tuned.heuristic_microseconds}});
  }
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

}  // namespace onnxopt::cuda
