#include "kernel_file/measured/launch_choices.h"

namespace onnxopt::cuda {

LaunchChoices& LaunchChoices::Get() {
  static auto* const choices = new LaunchChoices;
  return *choices;
}

void ReadMeasuredLaunch(const JsonReader& entry, LaunchTable* table) {
  (*table)[{entry["gpu"].Text(), entry["kernel"].Text(), entry["size"].Text()}] = {
      entry["symbol"].Text(), MeasuredFile::Microseconds(entry["microseconds"]),
      MeasuredFile::Microseconds(entry["rule_microseconds"])};
}

LaunchChoices::LaunchChoices()
    : file_("launches.json", "ONNXOPT_LAUNCH_TUNE",
            [this](const JsonReader& entry) { ReadMeasuredLaunch(entry, &measured_); }) {}

std::optional<MeasuredLaunch> LaunchChoices::Find(const std::string& gpu, const std::string& kernel,
                                                  const std::string& size) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto match = measured_.find({gpu, kernel, size});
  if (match == measured_.end()) return std::nullopt;
  return match->second;
}

void LaunchChoices::Add(const std::string& gpu, const std::string& kernel, const std::string& size,
                        const MeasuredLaunch& launch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  measured_[{gpu, kernel, size}] = launch;
  nlohmann::json entries = nlohmann::json::array();
  for (const auto& [key, entry] : measured_) {
    entries.push_back({{"gpu", std::get<0>(key)},
                       {"kernel", std::get<1>(key)},
                       {"size", std::get<2>(key)},
                       {"symbol", entry.symbol},
                       {"microseconds", entry.microseconds},
                       {"rule_microseconds", entry.rule_microseconds}});
  }
  file_.Write(entries);
}

}  // namespace onnxopt::cuda
