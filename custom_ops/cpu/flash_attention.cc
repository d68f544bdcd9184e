#include "cpu/flash_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "call/flash_attention.h"
#include "cpu/evaluate/best_evaluator.h"
#include "cpu/first_failure.h"

namespace onnxopt {
namespace {

// One call's work: a task for every head of every sequence.
class FlashJob {
 public:
  FlashJob(const FlashAttention& attention, const FlashAttentionCall& call)
      : attention_(attention),
        call_(call),
        load_(BestEvaluator().load(attention.dtype)),
        narrow_(BestEvaluator().store(attention.dtype)),
        store_(BestEvaluator().store(attention.output)) {}

  std::size_t tasks() const { return static_cast<std::size_t>(call_.batch * attention_.heads); }

  void Run(std::size_t task) noexcept {
    failure_.Guard([&] { Head(static_cast<std::int64_t>(task)); });
  }

  void Finish() const { failure_.Rethrow(); }

 private:
  void Head(std::int64_t task) const {
    const std::int64_t batch = task / attention_.heads;
    const std::int64_t head = task % attention_.heads;
    const std::int64_t of_group = head / (attention_.heads / attention_.groups);
    const std::vector<float> keys = Tokens(call_.k, batch, of_group, attention_.width);
    const std::vector<float> values = Tokens(call_.v, batch, of_group, attention_.values);
    std::vector<float> query(static_cast<std::size_t>(attention_.width));
    std::vector<float> weights(static_cast<std::size_t>(call_.keys));
    std::vector<float> bias(static_cast<std::size_t>(call_.bias == nullptr ? 0 : call_.keys));
    std::vector<float> result(static_cast<std::size_t>(attention_.values));
    std::vector<std::uint16_t> rounded(attention_.codes ? result.size() : 0);
    std::vector<float> sink;
    if (call_.sinks != nullptr) {
      sink.resize(1);
      Load(call_.sinks, head, &sink);
    }
    for (std::int64_t s = 0; s < call_.queries; ++s) {
      Load(call_.q.data, batch * call_.q.of_batch + head * call_.q.of_head + s * call_.q.of_token, &query);
      const std::int64_t of_bias =
          batch % call_.bias_period * call_.bias_batch + head * call_.bias_head + s * call_.bias_query;
      if (call_.bias != nullptr) Load(call_.bias, of_bias, &bias);
      Weigh(query, keys, bias, sink, s, &weights);
      std::fill(result.begin(), result.end(), 0.0F);
      for (std::size_t t = 0; t < weights.size(); ++t) {
        for (std::size_t j = 0; j < result.size(); ++j) result[j] += weights[t] * values[t * result.size() + j];
      }
      const std::int64_t row = (batch * call_.queries + s) * attention_.heads + head;
      if (attention_.codes) Code(*attention_.codes, &rounded, &result);
      const std::size_t at = static_cast<std::size_t>(row) * result.size() * Size(attention_.output);
      store_(static_cast<char*>(call_.y) + at, result.data(), nullptr, nullptr, result.size());
    }
  }

  // Makes codes of results, which are stored then. rounded: room for the results in the inputs' dtype.
  void Code(const AttentionCodes& codes, std::vector<std::uint16_t>* rounded, std::vector<float>* result) const {
    narrow_(rounded->data(), result->data(), nullptr, nullptr, result->size());
    load_(result->data(), rounded->data(), nullptr, nullptr, result->size());
    for (float& y : *result) {
      y /= codes.step;
      if (attention_.output == Dtype::kFloat8E4M3) continue;
      y = std::rint(y);
      y = y > codes.low ? std::fmin(y, codes.high) : codes.low;  // also of what is no number
    }
  }

  // The softmax of a query's scores; NaNs where it sees no key. bias, sink: empty where there is none.
  void Weigh(const std::vector<float>& query, const std::vector<float>& keys, const std::vector<float>& bias,
             const std::vector<float>& sink, std::int64_t s, std::vector<float>* weights) const {
    const std::int64_t own = s + call_.keys - call_.queries;  // the key that the query stands at
    const std::int64_t begin = attention_.before ? own - *attention_.before : 0;
    const std::int64_t end = attention_.after ? own + *attention_.after + 1 : call_.keys;
    float top = sink.empty() ? -INFINITY : sink[0];
    for (std::size_t t = 0; t < weights->size(); ++t) {
      float score = 0;
      for (std::size_t j = 0; j < query.size(); ++j) score += query[j] * keys[t * query.size() + j];
      score *= attention_.scale;
      if (attention_.cap > 0) score = attention_.cap * std::tanh(score / attention_.cap);
      if (!bias.empty()) score += bias[t];
      const auto key = static_cast<std::int64_t>(t);
      (*weights)[t] = key >= begin && key < end ? score : -INFINITY;
      top = std::fmax(top, (*weights)[t]);
    }
    const float base = top == -INFINITY ? 0 : top;
    float sum = sink.empty() ? 0 : std::exp(sink[0] - base);
    for (float& weight : *weights) sum += weight = std::exp(weight - base);
    for (float& weight : *weights) weight /= sum;
  }

  // A head of all keys or values, row by row.
  std::vector<float> Tokens(const HeadsPlace& place, std::int64_t batch, std::int64_t head, std::int64_t width) const {
    std::vector<float> all(static_cast<std::size_t>(call_.keys * width));
    std::vector<float> row(static_cast<std::size_t>(width));
    for (std::int64_t t = 0; t < call_.keys; ++t) {
      Load(place.data, batch * place.of_batch + head * place.of_head + t * place.of_token, &row);
      std::copy(row.begin(), row.end(), all.begin() + t * width);
    }
    return all;
  }

  void Load(const void* data, std::int64_t at, std::vector<float>* to) const {
    const auto bytes = static_cast<std::size_t>(at) * Size(attention_.dtype);
    load_(to->data(), static_cast<const char*>(data) + bytes, nullptr, nullptr, to->size());
  }

  const FlashAttention& attention_;
  const FlashAttentionCall& call_;
  const StepFunction load_;
  const StepFunction narrow_;  // to the inputs' dtype
  const StepFunction store_;
  FirstFailure failure_;
};

}  // namespace

void FlashAttentionCpuKernel::Compute(OrtKernelContext* context) const {
  const auto& attention = kernel().meaning.As<FlashAttention>();
  const FlashAttentionCall call = OpenCall(attention, context);
  if (call.y == nullptr) return;
  FlashJob job(attention, call);
  const auto run = [](void* data, std::size_t t) { static_cast<FlashJob*>(data)->Run(t); };
  Check(Ort().KernelContext_ParallelFor(context, run, job.tasks(), 0, &job));
  job.Finish();
}

}  // namespace onnxopt
