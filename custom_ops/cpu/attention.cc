#include "cpu/attention.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "call/attention.h"
#include "cpu/evaluate/best_evaluator.h"
#include "cpu/first_failure.h"

namespace onnxopt {
namespace {

// One call's work: a task for every group of every sequence.
class Job {
 public:
  Job(const TokenAttention& attention, const AttentionCall& call)
      : attention_(Of(call, attention)),
        call_(call),
        size_(Size(attention.dtype)),
        load_(BestEvaluator().load(attention.dtype)),
        store_(BestEvaluator().store(attention.dtype)) {}

  std::size_t tasks() const { return static_cast<std::size_t>(call_.batch * attention_.groups); }

  void Run(std::size_t task) noexcept {
    failure_.Guard([&] { Group(static_cast<std::int64_t>(task)); });
  }

  void Finish() const { failure_.Rethrow(); }

 private:
  void Group(std::int64_t group) const {
    const std::int64_t sequence = group / attention_.groups;
    const std::int64_t of_sequence = group % attention_.groups;
    const std::int64_t width = attention_.width;
    const std::int64_t keys_of_all = call_.keys;
    const std::vector<float> keys =
        Append(call_.past_k, call_.k, sequence * call_.k_stride + of_sequence * width, group, call_.present_k);
    const std::vector<float> values =
        Append(call_.past_v, call_.v, sequence * call_.v_stride + of_sequence * width, group, call_.present_v);
    const std::int64_t heads = attention_.heads / attention_.groups;
    std::vector<float> query(static_cast<std::size_t>(width));
    std::vector<float> result(static_cast<std::size_t>(width));
    std::vector<float> weights(static_cast<std::size_t>(keys_of_all));
    std::vector<float> mask(static_cast<std::size_t>(keys_of_all));
    for (std::int64_t row = 0; row < heads * attention_.tokens; ++row) {
      const std::int64_t token = row / heads;
      const std::int64_t head = of_sequence * heads + row % heads;
      const std::int64_t step = call_.q_stride / attention_.tokens;  // between tokens
      Load(call_.q, sequence * call_.q_stride + token * step + head * width, width, query.data());
      if (call_.mask != nullptr) {
        const std::int64_t at = sequence * call_.mask_sequence + head * call_.mask_head + token * call_.mask_token;
        Load(call_.mask, at, keys_of_all, mask.data());
      }
      Weigh(query, keys, mask, &weights);
      std::fill(result.begin(), result.end(), 0.0F);
      for (std::int64_t t = 0; t < keys_of_all; ++t) {
        const float* value = values.data() + t * width;
        const float weight = weights[static_cast<std::size_t>(t)];
        for (std::int64_t j = 0; j < width; ++j) result[static_cast<std::size_t>(j)] += weight * value[j];
      }
      const std::int64_t before = sequence * attention_.tokens + token;
      store_(At(call_.output, (before * attention_.heads + head) * width), result.data(), nullptr, nullptr,
             static_cast<std::size_t>(width));
    }
  }

  // The softmax of the scores of all keys and the mask.
  void Weigh(const std::vector<float>& query, const std::vector<float>& keys, const std::vector<float>& mask,
             std::vector<float>* weights) const {
    float top = -INFINITY;
    for (std::size_t t = 0; t < weights->size(); ++t) {
      float score = 0;
      for (std::size_t j = 0; j < query.size(); ++j) score += query[j] * keys[t * query.size() + j];
      (*weights)[t] = attention_.scale * score + mask[t];
      top = std::fmax(top, (*weights)[t]);
    }
    float sum = 0;
    for (float& weight : *weights) sum += weight = std::exp(weight - top);
    for (float& weight : *weights) weight /= sum;
  }

  // Writes a group's cache with the new tokens in it, and gives it as float32. at: the first of these in `fresh`, where
  // k and v of one token may lie behind q.
  std::vector<float> Append(const void* past, const void* fresh, std::int64_t at, std::int64_t group,
                            void* present) const {
    const std::int64_t width = attention_.width;
    const std::int64_t held = call_.past * width;
    const std::int64_t whole = call_.keys * width;
    const std::int64_t step = attention_.groups * width;  // between new tokens
    char* const to = At(present, group * whole);
    const char* const from = At(past, group * held);
    if (to != from) std::memcpy(to, from, static_cast<std::size_t>(held) * size_);  // else the cache changes in place
    for (std::int64_t t = 0; t < attention_.tokens; ++t) {
      std::memcpy(to + static_cast<std::size_t>(Slot(t) * width) * size_, At(fresh, at + t * step),
                  static_cast<std::size_t>(width) * size_);
    }
    std::vector<float> all(static_cast<std::size_t>(whole));
    Load(present, group * whole, whole, all.data());
    return all;
  }

  // Where in the cache new token `t` goes. Throws Error where that is outside.
  std::int64_t Slot(std::int64_t t) const {
    if (call_.slots == nullptr) return call_.past + t;
    const std::int64_t slot = call_.slots[t] + (call_.slots[t] < 0 ? call_.past : 0);
    if (slot >= 0 && slot < call_.past) return slot;
    throw Error("a new token's place in the cache is " + std::to_string(call_.slots[t]) + ", and the cache has " +
                std::to_string(call_.past));
  }

  void Load(const void* data, std::int64_t at, std::int64_t count, float* to) const {
    load_(to, At(data, at), nullptr, nullptr, static_cast<std::size_t>(count));
  }
  const char* At(const void* data, std::int64_t element) const {
    return static_cast<const char*>(data) + static_cast<std::size_t>(element) * size_;
  }
  char* At(void* data, std::int64_t element) const {
    return static_cast<char*>(data) + static_cast<std::size_t>(element) * size_;
  }

  const TokenAttention attention_;
  const AttentionCall& call_;
  const std::size_t size_;
  const StepFunction load_;
  const StepFunction store_;
  FirstFailure failure_;
};

}  // namespace

void TokenAttentionCpuKernel::Compute(OrtKernelContext* context) const {
  const auto& attention = kernel().meaning.As<TokenAttention>();
  const AttentionCall call = OpenCall(attention, context);
  Job job(attention, call);
  const auto run = [](void* data, std::size_t t) { static_cast<Job*>(data)->Run(t); };
  if (job.tasks() > 0) Check(Ort().KernelContext_ParallelFor(context, run, job.tasks(), 0, &job));
  job.Finish();
}

}  // namespace onnxopt
