#include "kernel_file/measured/convolution_plans.h"

#include <limits>

namespace onnxopt::cuda {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxType = std::numeric_limits<std::int32_t>::max();
constexpr char kAbout[] = "about";
constexpr char kTimed[] = "timed";

std::vector<std::pair<std::int64_t, std::int64_t>> ReadKnobs(const JsonReader& json) {
  std::vector<std::pair<std::int64_t, std::int64_t>> knobs;
  json.Each([&](const JsonReader& knob) {
    std::vector<std::int64_t> numbers;
    knob.Each([&](const JsonReader& number) {
      const nlohmann::json& value = number.value();
      const bool fits = !value.is_number_unsigned() || value.get<std::uint64_t>() <= kMax;
      if (!value.is_number_integer() || !fits) number.Fail("is not an integer of 64 bits");
      numbers.push_back(value.get<std::int64_t>());
    });
    const bool typed = numbers.size() == 2 && numbers[0] >= 0 && numbers[0] <= kMaxType;
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

nlohmann::json EntryOf(const Key& key, const EngineChoice& choice, const char* convolution) {
  nlohmann::json entry = WriteEngineChoice(choice);
  entry["gpu"] = std::get<0>(key);
  entry["cudnn"] = std::get<1>(key);
  entry[convolution] = std::get<2>(key);
  return entry;
}

nlohmann::json Entry(const Key& key, const MeasuredPlan& plan) {
  nlohmann::json entry = EntryOf(key, plan.choice, "convolution");
  entry["microseconds"] = plan.microseconds;
  entry["heuristic_microseconds"] = plan.heuristic_microseconds;
  return entry;
}

nlohmann::json Entry(const Key& key, const ExpectedPlan& plan) {
  nlohmann::json entry = EntryOf(key, plan.choice, kAbout);
  if (plan.timed) entry[kTimed] = true;
  return entry;
}

std::string ExpectedKeyOf(const Key& key) { return KeyOf(key) + "; about"; }

}  // namespace

EngineChoice ReadEngineChoice(const JsonReader& json) {
  const auto engine = static_cast<std::int64_t>(json["engine"].Number(0, kMax));
  return {engine, ReadKnobs(json["knobs"])};
}

nlohmann::json WriteEngineChoice(const EngineChoice& choice) {
  nlohmann::json knobs = nlohmann::json::array();
  for (const auto& [type, value] : choice.knobs) knobs.push_back(nlohmann::json::array({type, value}));
  return {{"engine", choice.engine}, {"knobs", knobs}};
}

void ReadPlan(const JsonReader& entry, PlanTable* measured, ExpectedTable* expected) {
  const bool about = entry.Has(kAbout);
  const Key key{entry["gpu"].Text(), entry["cudnn"].Number(0, kMax), entry[about ? kAbout : "convolution"].Text()};
  const EngineChoice choice = ReadEngineChoice(entry);
  if (about) {
    (*expected)[key] = {choice, entry.Has(kTimed) && entry[kTimed].Flag()};
  } else {
    (*measured)[key] = {choice, MeasuredFile::Microseconds(entry["microseconds"]),
                        MeasuredFile::Microseconds(entry["heuristic_microseconds"])};
  }
}

ConvolutionPlans& ConvolutionPlans::Get() {
  static auto* const plans = new ConvolutionPlans;
  return *plans;
}

ConvolutionPlans::ConvolutionPlans()
    : file_("conv_plans.json", "ONNXOPT_CONV_TUNE",
            [this](const JsonReader& entry) { ReadPlan(entry, &measured_, &expected_); }) {
  for (const auto& [key, plan] : expected_) shipped_.emplace(std::get<0>(key), std::get<1>(key));
}

std::optional<MeasuredPlan> ConvolutionPlans::Find(const std::string& gpu, std::size_t version,
                                                   const std::string& convolution) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto match = measured_.find({gpu, version, convolution});
  if (match == measured_.end()) return std::nullopt;
  return match->second;
}

std::optional<MeasuredPlan> ConvolutionPlans::FindKept(const std::string& gpu, std::size_t version,
                                                       const std::string& convolution) {
  if (!tunes() && !Find(gpu, version, convolution)) {
    kept_.Read(KeyOf({gpu, version, convolution}), [this](const JsonReader& entry) {
      const std::lock_guard<std::mutex> lock(mutex_);
      ReadPlan(entry, &measured_, &expected_);
    });
  }
  return Find(gpu, version, convolution);
}

void ConvolutionPlans::Add(const std::string& gpu, std::size_t version, const std::string& convolution,
                           const MeasuredPlan& plan) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Key added{gpu, version, convolution};
  measured_[added] = plan;
  if (!tunes()) return kept_.Write(KeyOf(added), Entry(added, plan));
  WriteFile();
}

std::optional<ExpectedPlan> ConvolutionPlans::FindExpected(const std::string& gpu, std::size_t version,
                                                           const std::string& about) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Key key{gpu, version, about};
  if (expected_.find(key) == expected_.end() && !tunes()) {
    kept_.Read(ExpectedKeyOf(key), [this](const JsonReader& entry) { ReadPlan(entry, &measured_, &expected_); });
  }
  const auto match = expected_.find(key);
  if (match == expected_.end()) return std::nullopt;
  return match->second;
}

std::optional<EngineChoice> ConvolutionPlans::FindShipped(const std::string& gpu, std::size_t version,
                                                          const std::string& about) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto match = expected_.find({gpu, version, about});
  return match == expected_.end() ? std::nullopt : std::optional<EngineChoice>(match->second.choice);
}

void ConvolutionPlans::AddExpected(const std::string& gpu, std::size_t version,
                                   const std::map<std::string, ExpectedPlan>& plans) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [about, plan] : plans) {
    const Key key{gpu, version, about};
    expected_[key] = plan;
    if (!tunes()) kept_.Write(ExpectedKeyOf(key), Entry(key, plan));
  }
  if (tunes()) WriteFile();
}

// The mutex is held.
void ConvolutionPlans::WriteFile() const {
  nlohmann::json entries = nlohmann::json::array();
  for (const auto& [key, plan] : measured_) entries.push_back(Entry(key, plan));
  for (const auto& [key, plan] : expected_) entries.push_back(Entry(key, plan));
  file_.Write(entries);
}

}  // namespace onnxopt::cuda
