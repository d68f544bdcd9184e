// The plan of the last call: shapes change, how they lie over each other hardly ever does.
#pragma once

#include <memory>
#include <mutex>

#include "cpu/blocks/plan.h"
#include "cpu/evaluate/best_evaluator.h"

namespace onnxopt {

// Thread-safe. The program must outlive the cache.
class PlanCache {
 public:
  explicit PlanCache(const Program& program) : program_(program) {}

  std::shared_ptr<const Plan> For(const PlanKey& key) const {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (plan_ != nullptr && key_ == key) return plan_;
    }
    auto plan = std::make_shared<const Plan>(MakePlan(program_, key, BestEvaluator()));
    const std::lock_guard<std::mutex> lock(mutex_);
    key_ = key;
    plan_ = plan;
    return plan;
  }

 private:
  const Program& program_;
  mutable std::mutex mutex_;
  mutable PlanKey key_;
  mutable std::shared_ptr<const Plan> plan_;
};

}  // namespace onnxopt
