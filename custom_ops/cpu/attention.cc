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
        cached_(Size(attention.Cached())),
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
    const std::vector<float> keys = Append(call_.past_k, call_.k, sequence * call_.k_stride + of_sequence * width,
                                           group, call_.present_k, Scales(call_.k_scales, of_sequence));
    const std::vector<float> values = Append(call_.past_v, call_.v, sequence * call_.v_stride + of_sequence * width,
                                             group, call_.present_v, Scales(call_.v_scales, of_sequence));
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

  // Of every element of a head; empty where the cache holds no codes.
  std::vector<float> Scales(const CallScales& scales, std::int64_t head) const {
    if (!attention_.codes) return {};
    std::vector<float> all(static_cast<std::size_t>(attention_.width));
    const Dtype dtype = attention_.codes->scales;
    const StepFunction load = BestEvaluator().load(dtype);
    for (std::size_t j = 0; j < all.size(); ++j) {
      const std::int64_t at = head * scales.head + static_cast<std::int64_t>(j) * scales.element;
      const char* const from = static_cast<const char*>(scales.data) + static_cast<std::size_t>(at) * Size(dtype);
      if (load == nullptr) {
        std::memcpy(&all[j], from, sizeof(float));
      } else {
        load(&all[j], from, nullptr, nullptr, 1);
      }
    }
    return all;
  }

  // Writes a group's cache with the new tokens in it, and gives it as float32. at: the first of these in `fresh`, where
  // k and v of one token may lie behind q. scales: of each element, empty where the cache holds no codes.
  std::vector<float> Append(const void* past, const void* fresh, std::int64_t at, std::int64_t group, void* present,
                            const std::vector<float>& scales) const {
    const std::int64_t width = attention_.width;
    const std::int64_t held = call_.past * width;
    const std::int64_t whole = call_.keys * width;
    const std::int64_t step = attention_.groups * width;  // between new tokens
    const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements) * cached_; };
    char* const to = static_cast<char*>(present) + bytes(group * whole);
    const char* const from = static_cast<const char*>(past) + bytes(group * held);
    if (to != from) std::memcpy(to, from, bytes(held));  // else the cache changes in place
    std::vector<float> token(scales.size());
    for (std::int64_t t = 0; t < attention_.tokens; ++t) {
      char* const place = to + bytes(Slot(t) * width);
      if (scales.empty()) {
        std::memcpy(place, At(fresh, at + t * step), bytes(width));
        continue;
      }
      Load(fresh, at + t * step, width, token.data());
      for (std::size_t j = 0; j < token.size(); ++j) {
        const float inverse = scales[j] == 0 ? 0 : 1 / scales[j];
        token[j] = attention_.codes->by_reciprocal ? token[j] * inverse : token[j] / scales[j];
      }
      StoreCodes(token, place);
    }
    std::vector<float> all(static_cast<std::size_t>(whole));
    if (scales.empty()) {
      Load(present, group * whole, whole, all.data());
      return all;
    }
    LoadCodes(to, &all);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] *= scales[i % scales.size()];
    return all;
  }

  // To nearest even, saturating; NaN becomes the lowest code of int8.
  void StoreCodes(const std::vector<float>& numbers, char* to) const {
    if (attention_.Cached() != Dtype::kInt8) {
      BestEvaluator().store(attention_.Cached())(to, numbers.data(), nullptr, nullptr, numbers.size());
      return;
    }
    for (std::size_t j = 0; j < numbers.size(); ++j) {
      const float rounded = std::nearbyint(numbers[j]);
      to[j] = static_cast<char>(static_cast<std::int8_t>(rounded > -128 ? std::fmin(rounded, 127.0F) : -128.0F));
    }
  }

  void LoadCodes(const char* codes, std::vector<float>* numbers) const {
    if (attention_.Cached() != Dtype::kInt8) {
      BestEvaluator().load(attention_.Cached())(numbers->data(), codes, nullptr, nullptr, numbers->size());
      return;
    }
    const auto* const from = reinterpret_cast<const std::int8_t*>(codes);
    for (std::size_t j = 0; j < numbers->size(); ++j) (*numbers)[j] = from[j];
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
  const std::size_t cached_;  // bytes of an element of the cache
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
