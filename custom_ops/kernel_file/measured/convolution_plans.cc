#include "kernel_file/measured/convolution_plans.h"

#include <limits>

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostType = std::numeric_limits<std::int32_t>::max();

std::vector<std::pair<std::int64_t, std::int64_t>> ReadKnobs(const JsonReader& json) {
  std::vector<std::pair<std::int64_t, std::int64_t>> knobs;
  json.Each([&](const JsonReader& knob) {
    std::vector<std::int64_t> numbers;
    knob.Each([&](const JsonReader& number) {
      const nlohmann::json& value = number.value();
      const bool fits = !value.is_number_unsigned() || value.get<std::uint64_t>() <= kMost;
      if (!value.is_number_integer() || !fits) number.Fail("is not an integer of 64 bits");
      numbers.push_back(value.get<std::int64_t>());
    });
    const bool typed = numbers.size() == 2 && numbers[0] >= 0 && numbers[0] <= kMostType;
    if (!typed) knob.Fail("is not a type and a value");
    knobs.emplace_back(numbers[0], numbers[1]);
  });
  return knobs;
}

using Key = PlanTable::key_type;

std::string KeyOf(const Key& key) {
  const auto& [gpu, version, convolution] = key;
  return gpu + "; cuDNN " + std::to_string(version) + "; " + convolution;
}

nlohmann::json Entry(const Key& key, const MeasuredPlan& plan) {
  const auto& [gpu, version, convolution] = key;
  nlohmann::json entry = WriteEngineChoice(plan.choice);
  entry["gpu"] = gpu;
  entry["cudnn"] = version;
  entry["convolution"] = convolution;
  entry["microseconds"] = plan.microseconds;
  entry["heuristic_microseconds"] = plan.heuristic_microseconds;
  return entry;
}

}  // namespace

EngineChoice ReadEngineChoice(const JsonReader& json) {
  const auto engine = static_cast<std::int64_t>(json["engine"].Number(0, kMost));
  return {engine, ReadKnobs(json["knobs"])};
}

nlohmann::json WriteEngineChoice(const EngineChoice& choice) {
  nlohmann::json knobs = nlohmann::json::array();
  for (const auto& [type, value] : choice.knobs) knobs.push_back(nlohmann::json::array({type, value}));
  return {{"engine", choice.engine}, {"knobs", knobs}};
}

void ReadMeasuredPlan(const JsonReader& entry, PlanTable* table) {
  (*table)[{entry["gpu"].Text(), entry["cudnn"].Number(0, kMost), entry["convolution"].Text()}] = {
      ReadEngineChoice(entry), MeasuredFile::Microseconds(entry["microseconds"]),
      MeasuredFile::Microseconds(entry["heuristic_microseconds"])};
}

ConvolutionPlans& ConvolutionPlans::Get() {
  static auto* const plans = new ConvolutionPlans;
  return *plans;
}

ConvolutionPlans::ConvolutionPlans()
    : file_("conv_plans.json", "ONNXOPT_CONV_TUNE",
            [this](const JsonReader& entry) { ReadMeasuredPlan(entry, &known_); }) {}

std::optional<MeasuredPlan> ConvolutionPlans::Find(const std::string& gpu, std::size_t version,
                                                   const std::string& convolution) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = known_.find({gpu, version, convolution});
  if (found == known_.end()) return std::nullopt;
  return found->second;
}

std::optional<MeasuredPlan> ConvolutionPlans::FindKept(const std::string& gpu, std::size_t version,
                                                       const std::string& convolution) {
  if (!tunes() && !Find(gpu, version, convolution)) {
    kept_.Read(KeyOf({gpu, version, convolution}), [this](const JsonReader& entry) {
      const std::lock_guard<std::mutex> lock(mutex_);
      ReadMeasuredPlan(entry, &known_);
    });
  }
  return Find(gpu, version, convolution);
}

void ConvolutionPlans::Add(const std::string& gpu, std::size_t version, const std::string& convolution,
                           const MeasuredPlan& plan) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Key added{gpu, version, convolution};
  known_[added] = plan;
  if (!tunes()) return kept_.Write(KeyOf(added), Entry(added, plan));
  nlohmann::json entries = nlohmann::json::array();
  for (const auto& [key, entry] : known_) entries.push_back(Entry(key, entry));
  file_.Write(entries);
}

}  // namespace onnxopt::cuda
