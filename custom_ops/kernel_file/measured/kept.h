// What the library measured unasked, at the first run of a shape that the graph states. Each entry is a file of its own
// in the user's cache, sealed as file.h says, so that later processes measure nothing and run the same kernels.
#pragma once

#include <mutex>
#include <string>

#include "kernel_file/measured/file.h"
#include "support/user_cache.h"

namespace onnxopt {

// Whether first runs measure. ONNXOPT_MEASURE=0 says no: the heuristics of cuBLASLt and cuDNN decide then.
bool MeasuresFirstRuns();

// Whether `tune` asks heuristics for sizes that may come, and measures nothing yet (ONNXOPT_TUNE_SIZES is set).
bool ChoosesForSizesAlone();

// One measurement at a time in a process: two would disturb each other, and the second may be of the same thing.
std::mutex& Measuring();

class KeptEntries {
 public:
  // name: of the cache's folder.
  explicit KeptEntries(const std::string& name) : cache_(name, "onnxopt measured 1") {}

  // Hands the entry that was kept for the key to `read`. Nothing where there is none, or another release wrote it.
  void Read(const std::string& key, const ReadEntry& read) const;

  void Write(const std::string& key, const nlohmann::json& entry) const;

 private:
  const UserCache cache_;
};

}  // namespace onnxopt
