#include "kernel_file/block.h"

#include <algorithm>
#include <string>

#include "kernel_file/convolution.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMostChannels = std::uint64_t{1} << 31U;

// The channels of one tensor that steps have written so far.
class Written {
 public:
  explicit Written(std::int64_t channels) : channels_(static_cast<std::size_t>(channels), false) {}

  std::int64_t channels() const { return static_cast<std::int64_t>(channels_.size()); }
  bool Has(const Part& part) const {
    return std::all_of(Begin(part), Begin(part) + part.channels, [](bool written) { return written; });
  }
  bool HasSome(const Part& part) const {
    return std::any_of(Begin(part), Begin(part) + part.channels, [](bool written) { return written; });
  }
  bool HasAll() const { return std::find(channels_.begin(), channels_.end(), false) == channels_.end(); }
  void Add(const Part& part) { std::fill_n(channels_.begin() + part.first, part.channels, true); }

 private:
  std::vector<bool>::const_iterator Begin(const Part& part) const { return channels_.begin() + part.first; }

  std::vector<bool> channels_;
};

class Reader {
 public:
  explicit Reader(Block* block) : block_(block), read_(block->inputs, false) {
    for (const std::int64_t channels : block->channels) written_.emplace_back(channels);
  }

  void Step(const JsonReader& json) {
    BlockStep step;
    Convolution& convolution = step.convolution;
    convolution.dtype = block_->dtype;
    ReadOperation(json, &convolution);
    if (convolution.activation == ConvolutionActivation::kPrelu) json["activation"].Fail("is prelu, which has slopes");
    if (convolution.transposed) json["transposed"].Fail("is set in a block");
    step.x = Source(json["x"]);
    step.w = Input(json["w"]);
    if (json.Has("bias")) {
      step.bias = Input(json["bias"]);
      convolution.bias = convolution.inputs++;
    }
    if (json.Has("residual")) {
      step.residual = Source(json["residual"]);
      convolution.residual = convolution.inputs++;
    }
    if (convolution.residual_last && !step.residual) json["residual_last"].Fail("is set without a residual");
    step.y = PartOf(json["y"], block_->inputs, block_->inputs + written_.size());
    Written& target = written_[step.y.tensor - block_->inputs];
    if (target.HasSome(step.y)) json["y"].Fail("has channels that an earlier step wrote");
    if (step.residual && step.residual->channels != step.y.channels) {
      json["residual"].Fail("has not the channels of y");
    }
    target.Add(step.y);
    block_->steps.push_back(step);
  }

  void Finish(const JsonReader& json) const {
    for (std::size_t k = 0; k < read_.size(); ++k) {
      if (!read_[k]) json["inputs"].Fail("has an input " + std::to_string(k) + " that nothing reads");
    }
    for (std::size_t k = 0; k < written_.size(); ++k) {
      if (!written_[k].HasAll()) {
        json["channels"].Fail("has a tensor " + std::to_string(k) + " that no step writes to the end");
      }
    }
  }

 private:
  std::size_t Input(const JsonReader& json) {
    const auto at = static_cast<std::size_t>(json.Number(0, block_->inputs - 1));
    read_[at] = true;
    return at;
  }

  // A part that is there before the step.
  Part Source(const JsonReader& json) {
    const Part part = PartOf(json, 0, block_->inputs + written_.size());
    if (part.tensor < block_->inputs) {
      read_[part.tensor] = true;
    } else if (!written_[part.tensor - block_->inputs].Has(part)) {
      json.Fail("has channels that no earlier step wrote");
    }
    return part;
  }

  // A part of one of the tensors from `begin` on, before `end`.
  Part PartOf(const JsonReader& json, std::size_t begin, std::size_t end) const {
    Part part{};
    part.tensor = static_cast<std::size_t>(json["tensor"].Number(begin, end - 1));
    const std::uint64_t all = json["of"].Number(1, kMostChannels);
    part.of = static_cast<std::int64_t>(all);
    if (part.tensor >= block_->inputs && part.of != written_[part.tensor - block_->inputs].channels()) {
      json["of"].Fail("is not what channels says of the tensor");
    }
    part.first = static_cast<std::int64_t>(json["first"].Number(0, all - 1));
    part.channels = static_cast<std::int64_t>(json["channels"].Number(1, all - static_cast<std::uint64_t>(part.first)));
    return part;
  }

  Block* block_;
  std::vector<bool> read_;
  std::vector<Written> written_;
};

}  // namespace

Block ReadBlock(const JsonReader& json, const std::vector<Dtype>& inputs, const std::vector<Dtype>& outputs) {
  constexpr std::uint64_t kWidest = 1U << 20U;  // that a damaged file cannot ask for much memory
  Block block;
  block.inputs = inputs.size();
  block.outputs = outputs.size();
  if (inputs.empty() || inputs.size() > kBlockInputs) {
    json["inputs"].Fail("has " + std::to_string(inputs.size()) + " dtypes, not 1 to " + std::to_string(kBlockInputs));
  }
  if (outputs.empty()) json["outputs"].Fail("is empty");
  block.dtype = outputs[0];
  const bool floats = IsFloat(block.dtype);
  if (!floats) json["outputs"].Fail("is " + std::string(Row(block.dtype).name) + ", no float of 16 or 32 bits");
  for (const Dtype dtype : inputs) {
    if (dtype != block.dtype) json["inputs"].Fail("differ from the output's dtype");
  }
  for (const Dtype dtype : outputs) {
    if (dtype != block.dtype) json["outputs"].Fail("differ in dtype");
  }
  json["channels"].Each([&](const JsonReader& channels) {
    block.channels.push_back(static_cast<std::int64_t>(channels.Number(1, kWidest)));
    if (block.channels.size() > kBlockSteps) json["channels"].Fail("has too many tensors");
  });
  if (block.channels.size() < block.outputs) json["channels"].Fail("has fewer tensors than there are outputs");
  Reader reader(&block);
  json["steps"].Each([&](const JsonReader& step) {
    if (block.steps.size() == kBlockSteps) json["steps"].Fail("has more than " + std::to_string(kBlockSteps));
    reader.Step(step);
  });
  reader.Finish(json);
  return block;
}

}  // namespace onnxopt
