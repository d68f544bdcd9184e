#include "cpu/squeeze_excite.h"

#include <algorithm>
#include <vector>

#include "cpu/blocks/peephole.h"
#include "cpu/evaluate/best_evaluator.h"
#include "cpu/pointwise.h"

namespace onnxopt {
namespace {

std::vector<float> Widened(Dtype dtype, const void* data, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  const StepFunction load = BestEvaluator().load(dtype);
  if (load == nullptr) {
    std::copy_n(static_cast<const float*>(data), values.size(), values.data());
  } else if (count > 0) {
    load(values.data(), data, nullptr, nullptr, values.size());
  }
  return values;
}

// The means of one image's channels.
std::vector<float> Means(const DepthwiseCall& map, Dtype dtype, std::int64_t row, std::int64_t channels) {
  const std::int64_t pixels = map.out_height * map.out_width;
  std::vector<double> sums(static_cast<std::size_t>(channels));
  for (std::int64_t pixel = row * pixels; pixel < (row + 1) * pixels; ++pixel) {
    const std::size_t from = static_cast<std::size_t>(pixel * channels) * Size(dtype);
    const std::vector<float> x = Widened(dtype, static_cast<const char*>(map.y) + from, channels);
    for (std::size_t c = 0; c < x.size(); ++c) sums[c] += static_cast<double>(x[c]);
  }
  std::vector<float> means(sums.size());
  for (std::size_t c = 0; c < sums.size(); ++c) means[c] = static_cast<float>(sums[c] / static_cast<double>(pixels));
  return means;
}

std::vector<float> Product(const std::vector<float>& x, const std::vector<float>& weight,
                           const std::vector<float>& bias, std::int64_t results) {
  std::vector<float> sums(static_cast<std::size_t>(results));
  for (std::size_t k = 0; k < sums.size(); ++k) {
    float sum = bias.empty() ? 0.0F : bias[k];
    for (std::size_t c = 0; c < x.size(); ++c) sum += x[c] * weight[k * x.size() + c];
    sums[k] = sum;
  }
  return sums;
}

}  // namespace

SqueezeExciteCpuKernel::Behind::Behind(const Program& given) : program(Peephole(given)), plans(program) {}

void SqueezeExciteCpuKernel::Behind::Run(const float* sums, std::size_t count, void* results) const {
  const Shape row{1, {static_cast<std::int64_t>(count)}};
  Domain domain;
  domain.count = count;
  domain.input[0] = sums;
  domain.output[0] = results;
  Collapse(row, row, &domain.access[0]);
  const Tiling tiling = Tile(program, domain);
  RunBlocks(program, *plans.For(tiling.key), tiling, domain, 0, count);
}

SqueezeExciteCpuKernel::SqueezeExciteCpuKernel(const Kernel& kernel)
    : FusedKernel(kernel),
      meaning_(kernel.meaning.As<SqueezeExcite>()),
      first_(meaning_.layer[0].program),
      second_(meaning_.layer[1].program) {
  if (meaning_.depthwise) map_.emplace(*meaning_.depthwise);
}

void SqueezeExciteCpuKernel::Compute(OrtKernelContext* context) const {
  const SqueezeExciteCall call = OpenCall(meaning_, context);
  if (call.y == nullptr) return;
  if (map_) map_->Run(call.map, context);
  const auto bias = [&](int k, std::int64_t count) {
    return call.bias[k] == nullptr ? std::vector<float>() : Widened(meaning_.dtype, call.bias[k], count);
  };
  const std::size_t size = Size(meaning_.dtype);
  const std::vector<float> weights[] = {Widened(meaning_.dtype, call.weight[0], meaning_.hidden * meaning_.channels),
                                        Widened(meaning_.dtype, call.weight[1], meaning_.results * meaning_.hidden)};
  const std::vector<float> biases[] = {bias(0, meaning_.hidden), bias(1, meaning_.results)};
  std::vector<unsigned char> stored(static_cast<std::size_t>(meaning_.hidden) * size);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const auto from = [&](std::int64_t width) { return static_cast<std::size_t>(row * width) * size; };
    const std::vector<float> mean =
        map_
            ? Means(call.map, meaning_.dtype, row, meaning_.channels)
            : Widened(meaning_.dtype, static_cast<const char*>(call.mean) + from(meaning_.channels), meaning_.channels);
    const std::vector<float> sums = Product(mean, weights[0], biases[0], meaning_.hidden);
    first_.Run(sums.data(), sums.size(), stored.data());
    const std::vector<float> hidden = Widened(meaning_.dtype, stored.data(), meaning_.hidden);
    const std::vector<float> last = Product(hidden, weights[1], biases[1], meaning_.results);
    second_.Run(last.data(), last.size(), static_cast<char*>(call.y) + from(meaning_.results));
  }
}

}  // namespace onnxopt
