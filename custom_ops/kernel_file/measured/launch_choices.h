// Entry points chosen by measurement, kept as data: launches.json beside the library (file.h). An
// entry:
//
//   {"gpu": "NVIDIA H200", "kernel": "AddGelu_3f2a9c1e", "size": "3145728",
//    "symbol": "AddGelu_3f2a9c1e_contiguous_FF_u2", "microseconds": 3.1, "rule_microseconds": 3.4}
//
// An entry counts only for the same GPU model, kernel and size, and where the entry point fits the call as it would
// have to without it. ONNXOPT_LAUNCH_TUNE=<path> has every kernel that has no entry measured when it is first run at a
// size (never under capture) and written to that file.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "kernel_file/measured/file.h"

namespace onnxopt::cuda {

struct MeasuredLaunch {
  std::string symbol;
  double microseconds;
  double rule_microseconds;  // of the entry point that would have run otherwise
};

// By GPU model, kernel and size.
using LaunchTable = std::map<std::tuple<std::string, std::string, std::string>, MeasuredLaunch>;

// Adds an entry of the file to the table. Throws Error naming the place of what is damaged.
void ReadMeasuredLaunch(const JsonReader& entry, LaunchTable* table);

class LaunchChoices {
 public:
  // What lies beside the library, and in the file that ONNXOPT_LAUNCH_TUNE names. Read once. Throws Error if one is
  // damaged.
  static LaunchChoices& Get();

  // Whether there is nothing to look for.
  bool none() const { return measured_.empty() && !tunes(); }

  // Whether kernels without an entry are to be measured.
  bool tunes() const { return file_.tunes(); }

  std::optional<MeasuredLaunch> Find(const std::string& gpu, const std::string& kernel, const std::string& size) const;

  // Keeps an entry and writes the file anew. Throws Error where it cannot be written.
  void Add(const std::string& gpu, const std::string& kernel, const std::string& size, const MeasuredLaunch& launch);

 private:
  LaunchChoices();

  mutable std::mutex mutex_;
  LaunchTable measured_;
  const MeasuredFile file_;  // last: it fills known_ when it is made
};

}  // namespace onnxopt::cuda
