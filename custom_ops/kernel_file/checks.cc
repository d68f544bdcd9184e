#include "kernel_file/checks.h"

#include <algorithm>
#include <string>
#include <vector>

namespace onnxopt {
namespace {

// Which channels of a tensor steps have written so far.
using Written = std::vector<bool>;

// Of the tensors that steps write; below 0 for inputs.
std::int64_t Place(const Block& block, const Part& part) {
  return part.tensor - static_cast<std::int64_t>(block.inputs.size());
}

void CheckPlace(const JsonReader& json, const Block& block, const Part& part) {
  const std::int64_t place = Place(block, part);
  if (place >= static_cast<std::int64_t>(block.channels.size())) json.Fail("is no part of a tensor");
  if (place >= 0 && part.of != block.channels[static_cast<std::size_t>(place)]) {
    json["of"].Fail("is not what channels says of the tensor");
  }
}

void CheckSource(const JsonReader& json, const Block& block, const Part& part, const std::vector<Written>& written) {
  CheckPlace(json, block, part);
  if (Place(block, part) < 0) return;
  const Written& tensor = written[static_cast<std::size_t>(Place(block, part))];
  const auto begin = tensor.begin() + part.first;
  if (!std::all_of(begin, begin + part.channels, [](bool w) { return w; })) {
    json.Fail("has channels that no earlier step wrote");
  }
}

void CheckResult(const JsonReader& json, const Block& block, const Part& part, std::vector<Written>* written) {
  CheckPlace(json, block, part);
  if (Place(block, part) < 0) json.Fail("is no part of a tensor that steps write");
  Written& tensor = (*written)[static_cast<std::size_t>(Place(block, part))];
  const auto begin = tensor.begin() + part.first;
  if (std::any_of(begin, begin + part.channels, [](bool w) { return w; })) {
    json.Fail("has channels that an earlier step wrote");
  }
  std::fill_n(begin, part.channels, true);
}

}  // namespace

void Check(const JsonReader& json, const Block& block) {
  std::vector<Written> written;
  for (const std::int64_t channels : block.channels) written.emplace_back(static_cast<std::size_t>(channels), false);
  std::size_t c = 0;
  json["copies"].Each([&](const JsonReader& place) {
    const BlockCopy& copy = block.copies[c++];
    if (Place(block, copy.x) >= 0) place["x"].Fail("is no part of an input");
    CheckResult(place["y"], block, copy.y, &written);
  });
  std::size_t k = 0;
  json["steps"].Each([&](const JsonReader& place) {
    const BlockStep& step = block.steps[k++];
    CheckSource(place["x"], block, step.x, written);
    if (step.residual) CheckSource(place["residual"], block, *step.residual, written);
    CheckResult(place["y"], block, step.y, &written);
  });
  for (std::size_t t = 0; t < written.size(); ++t) {
    if (std::find(written[t].begin(), written[t].end(), false) != written[t].end()) {
      json["channels"].Fail("have a tensor " + std::to_string(t) + " that no step writes to the end");
    }
  }
}

void Check(const JsonReader& json, const SqueezeExcite& meaning) {
  if (!meaning.depthwise) return;
  const DtypeList& inputs = meaning.depthwise->inputs;
  if (inputs.size() > meaning.inputs.size() || !std::equal(inputs.begin(), inputs.end(), meaning.inputs.begin()) ||
      meaning.depthwise->output() != meaning.outputs[0]) {
    json["depthwise"].Fail("is not of the first inputs and the first output");
  }
}

void AddReads(const SqueezeExcite& meaning, InputsRead* read) {
  if (!meaning.depthwise) return;
  for (std::size_t k = 0; k < meaning.depthwise->inputs.size(); ++k) read->Add(k);
}

void AddReads(const Block& block, InputsRead* read) {
  const auto add = [&](const Part& part) {
    if (Place(block, part) < 0) read->Add(static_cast<std::size_t>(part.tensor));
  };
  for (const BlockStep& step : block.steps) {
    add(step.x);
    if (step.residual) add(*step.residual);
  }
  for (const BlockCopy& copy : block.copies) add(copy.x);
}

}  // namespace onnxopt
