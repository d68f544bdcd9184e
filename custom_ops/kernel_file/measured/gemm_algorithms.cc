#include "kernel_file/measured/gemm_algorithms.h"

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

namespace onnxopt::cuda {
namespace {

constexpr char kFile[] = "gemm_algos.json";
constexpr char kAbout[] = "about";
constexpr char kTuneVariable[] = "ONNXOPT_GEMM_TUNE";
constexpr std::size_t kWords = 8;
constexpr std::size_t kHexDigits = 16;
constexpr int kHexBase = 16;
constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();

Algorithm ReadAlgorithm(const JsonReader& json) {
  Algorithm algorithm{};
  std::size_t count = 0;
  json.Each([&](const JsonReader& word) {
    const std::string text = word.Text();
    const bool digits = text.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (text.size() > kHexDigits || !digits) word.Fail("is not a word in hex");
    if (count < kWords) algorithm.data[count] = std::strtoull(text.c_str(), nullptr, kHexBase);
    ++count;
  });
  if (count != kWords) json.Fail("has " + std::to_string(count) + " words, not " + std::to_string(kWords));
  return algorithm;
}

nlohmann::json WriteAlgorithm(const Algorithm& algorithm) {
  nlohmann::json words = nlohmann::json::array();
  for (const std::uint64_t word : algorithm.data) {
    char text[kHexDigits + 1];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(word));
    words.push_back(text);
  }
  return words;
}

using Key = AlgorithmTable::key_type;

std::string KeyOf(const Key& key) {
  const auto& [gpu, version, product] = key;
  return gpu + "; cuBLASLt " + std::to_string(version) + "; " + product;
}

nlohmann::json Entry(const Key& key, const TunedAlgorithm& tuned) {
  const auto& [gpu, version, product] = key;
  nlohmann::json entry = {{"gpu", gpu},
                          {"cublaslt", version},
                          {"product", product},
                          {"algorithm", WriteAlgorithm(tuned.algorithm)},
                          {"microseconds", tuned.microseconds},
                          {"heuristic_microseconds", tuned.heuristic_microseconds}};
  if (tuned.convolution) {
    nlohmann::json& of_cudnn = entry["cudnn"] = WriteEngineChoice(tuned.convolution->choice);
    of_cudnn["version"] = tuned.convolution->version;
    of_cudnn["algorithm_microseconds"] = tuned.convolution->algorithm_microseconds;
  }
  return entry;
}

nlohmann::json Entry(const Key& key, const std::vector<Algorithm>& algorithms) {
  const auto& [gpu, version, about] = key;
  nlohmann::json words = nlohmann::json::array();
  for (const Algorithm& algorithm : algorithms) words.push_back(WriteAlgorithm(algorithm));
  return {{"gpu", gpu}, {"cublaslt", version}, {kAbout, about}, {"algorithms", words}};
}

}  // namespace

Algorithms& Algorithms::Get() {
  static auto* const algorithms = new Algorithms;
  return *algorithms;
}

void ReadTunedAlgorithm(const JsonReader& entry, AlgorithmTable* table, ExpectedAlgorithms* expected) {
  const std::size_t version = entry["cublaslt"].Number(0, kMax);
  if (entry.Has(kAbout)) {
    std::vector<Algorithm>& algorithms = (*expected)[{entry["gpu"].Text(), version, entry[kAbout].Text()}];
    entry["algorithms"].Each([&](const JsonReader& each) { algorithms.push_back(ReadAlgorithm(each)); });
    return;
  }
  TunedAlgorithm tuned{ReadAlgorithm(entry["algorithm"]),
                       MeasuredFile::Microseconds(entry["microseconds"]),
                       MeasuredFile::Microseconds(entry["heuristic_microseconds"]),
                       {}};
  if (entry.Has("cudnn")) {
    const JsonReader of_cudnn = entry["cudnn"];
    tuned.convolution = {of_cudnn["version"].Number(0, kMax), ReadEngineChoice(of_cudnn),
                         MeasuredFile::Microseconds(of_cudnn["algorithm_microseconds"])};
  }
  (*table)[{entry["gpu"].Text(), version, entry["product"].Text()}] = std::move(tuned);
}

Algorithms::Algorithms()
    : file_(kFile, kTuneVariable,
            [this](const JsonReader& entry) { ReadTunedAlgorithm(entry, &measured_, &expected_); }) {}

std::optional<TunedAlgorithm> Algorithms::Find(const std::string& gpu, std::size_t version,
                                               const std::string& product) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto match = measured_.find({gpu, version, product});
  if (match == measured_.end()) return std::nullopt;
  return match->second;
}

std::optional<TunedAlgorithm> Algorithms::FindKept(const std::string& gpu, std::size_t version,
                                                   const std::string& product) {
  if (!tunes() && !Find(gpu, version, product)) {
    kept_.Read(KeyOf({gpu, version, product}), [this](const JsonReader& entry) {
      const std::lock_guard<std::mutex> lock(mutex_);
      ReadTunedAlgorithm(entry, &measured_, &expected_);
    });
  }
  return Find(gpu, version, product);
}

void Algorithms::Add(const std::string& gpu, std::size_t version, const std::string& product,
                     const TunedAlgorithm& tuned) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Key added{gpu, version, product};
  measured_[added] = tuned;
  if (!tunes()) return kept_.Write(KeyOf(added), Entry(added, tuned));
  WriteFile();
}

std::vector<Algorithm> Algorithms::Expected(const std::string& gpu, std::size_t version,
                                            const std::string& about) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto match = expected_.find({gpu, version, about});
  return match == expected_.end() ? std::vector<Algorithm>{} : match->second;
}

void Algorithms::AddExpected(const std::string& gpu, std::size_t version, const std::string& about,
                             const std::vector<Algorithm>& algorithms) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Algorithm>& rows = expected_[{gpu, version, about}];
  const std::size_t before = rows.size();
  for (const Algorithm& algorithm : algorithms) {
    if (std::find(rows.begin(), rows.end(), algorithm) == rows.end()) rows.push_back(algorithm);
  }
  if (rows.size() > before) WriteFile();
}

// The mutex is held.
void Algorithms::WriteFile() const {
  nlohmann::json entries = nlohmann::json::array();
  for (const auto& [key, algorithm] : measured_) entries.push_back(Entry(key, algorithm));
  for (const auto& [key, algorithms] : expected_) entries.push_back(Entry(key, algorithms));
  file_.Write(entries);
}

}  // namespace onnxopt::cuda
