// Plans of convolutions chosen by measurement, kept as data: conv_plans.json beside the library.
//
//   {"schema": 2, "entries": [{"gpu": "NVIDIA H200", "cudnn": 91900,
//                              "convolution": "float16 x 32x56x56x64 w 64x3x3x64 y 56x56 pads 1x1x1x1 bias relu",
//                              "engine": 4, "knobs": [[type, value], ...],
//                              "microseconds": 25.9, "heuristic_microseconds": 26.3}]}
//
// An entry of a convolution whose shape comes with its input has "about" in place of "convolution", and "timed" in
// place of times: what is chosen for a shape that stands for all of about its size, by cuDNN's heuristic alone or
// beside the next plans that it names.
//
// An entry counts only for the same GPU model and the same version of cuDNN. ONNXOPT_CONV_TUNE=<path> has every
// convolution that has no entry measured when it is first run (never under capture) and written to that file. Without
// it, convolutions of shapes that the graph states are measured too, among the plans that cuDNN need not compile, and
// kept in the user's cache.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernel_file/measured/kept.h"

namespace onnxopt::cuda {

// A choice of cuDNN's, by its own numbers: an engine and the values of its knobs.
struct EngineChoice {
  std::int64_t engine = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> knobs;  // (type, value), ordered

  bool operator==(const EngineChoice& other) const { return engine == other.engine && knobs == other.knobs; }
};

// The fields "engine" and "knobs" of an object. Reading throws Error naming the place of what is damaged.
EngineChoice ReadEngineChoice(const JsonReader& json);
nlohmann::json WriteEngineChoice(const EngineChoice& choice);

struct MeasuredPlan {
  EngineChoice choice;
  double microseconds;
  double heuristic_microseconds;  // of the plan that would have run otherwise
};

// By GPU model, version of cuDNN and convolution.
using PlanTable = std::map<std::tuple<std::string, std::size_t, std::string>, MeasuredPlan>;

// timed: whether it was the fastest of several, not the heuristic's first alone.
struct ExpectedPlan {
  EngineChoice choice;
  bool timed = false;
};

// The choices of entries with "about", by the same.
using ExpectedTable = std::map<PlanTable::key_type, ExpectedPlan>;

// Adds an entry of the file to its table. Throws Error naming the place of what is damaged.
void ReadPlan(const JsonReader& entry, PlanTable* measured, ExpectedTable* expected);

class ConvolutionPlans {
 public:
  // What lies beside the library, and in the file that ONNXOPT_CONV_TUNE names. Read once. Throws Error if one is
  // damaged.
  static ConvolutionPlans& Get();

  // Whether convolutions without an entry are to be measured.
  bool tunes() const { return file_.tunes(); }

  std::optional<MeasuredPlan> Find(const std::string& gpu, std::size_t version, const std::string& convolution) const;

  // The same, and what an earlier process kept in the user's cache, where nothing is to be written to a file.
  std::optional<MeasuredPlan> FindKept(const std::string& gpu, std::size_t version, const std::string& convolution);

  // Keeps an entry, and writes the file anew, or to the user's cache. Throws Error where the file cannot be written.
  void Add(const std::string& gpu, std::size_t version, const std::string& convolution, const MeasuredPlan& plan);

  // The same of choices for sizes: `about` is the shape that stands for them.
  std::optional<ExpectedPlan> FindExpected(const std::string& gpu, std::size_t version, const std::string& about);
  void AddExpected(const std::string& gpu, std::size_t version, const std::map<std::string, ExpectedPlan>& plans);

  // Whether some lie beside the library.
  bool ships(const std::string& gpu, std::size_t version) const { return shipped_.count({gpu, version}) > 0; }
  // One of them, without looking into the user's cache.
  std::optional<EngineChoice> FindShipped(const std::string& gpu, std::size_t version, const std::string& about) const;

 private:
  ConvolutionPlans();
  void WriteFile() const;

  std::set<std::pair<std::string, std::size_t>> shipped_;  // of choices for sizes beside the library
  mutable std::mutex mutex_;
  PlanTable measured_;
  ExpectedTable expected_;
  const KeptEntries kept_{"convolutions"};
  const MeasuredFile file_;  // last: it fills both tables when it is made
};

}  // namespace onnxopt::cuda
