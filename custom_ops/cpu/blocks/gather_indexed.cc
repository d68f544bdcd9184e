#include "cpu/blocks/gather_indexed.h"

#include <algorithm>
#include <cstring>

#include "cpu/blocks/element_size.h"

namespace onnxopt {
namespace {

constexpr std::size_t kMaxForms = 1 + kMaxConditions;
constexpr std::size_t kMaxAxes = 48;

// Linear forms of the domain index that advance together, from one run of neighbours to the next. The domain is cut
// where any of the forms bends; inside a run each of them moves by a constant step.
class Walk {
 public:
  void Add(const Access* form) { form_[forms_++] = form; }

  // False where the forms bend at places that do not fit into one another: then there are no common runs.
  bool Start(std::uint64_t first) {
    std::uint64_t cut[kMaxAxes + 1] = {1};
    std::size_t cuts = 1;
    for (std::size_t f = 0; f < forms_; ++f) {
      for (std::size_t k = 0; k < form_[f]->runs; ++k) {
        const Run& run = form_[f]->run[k];
        if (cuts + 2 > kMaxAxes) return false;
        cut[cuts++] = run.div;
        cut[cuts++] = run.div * run.mod;
      }
    }
    std::sort(cut, cut + cuts);
    cuts = static_cast<std::size_t>(std::unique(cut, cut + cuts) - cut);
    for (std::size_t k = 0; k + 1 < cuts; ++k) {
      if (cut[k + 1] % cut[k] != 0) return false;
      Axis& axis = axis_[axes_++];
      axis.extent = cut[k + 1] / cut[k];
      axis.at = first % axis.extent;
      first /= axis.extent;
      for (std::size_t f = 0; f < forms_; ++f) {
        axis.step[f] = Step(*form_[f], cut[k], cut[k + 1]);
        base_[f] += static_cast<std::int64_t>(axis.at) * axis.step[f];
      }
    }
    return true;
  }

  // Elements left of the current run. No axes: the forms never change.
  std::uint64_t left() const { return axes_ == 0 ? ~std::uint64_t{0} : axis_[0].extent - axis_[0].at; }
  std::int64_t value(std::size_t form) const { return base_[form]; }
  std::int64_t step(std::size_t form) const { return axes_ == 0 ? 0 : axis_[0].step[form]; }

  // Goes on behind the current run.
  void Next() {
    for (std::size_t k = 0; k < axes_; ++k) {
      const std::uint64_t back = axis_[k].at;
      if (k > 0 && axis_[k].at + 1 < axis_[k].extent) {
        ++axis_[k].at;
        Move(axis_[k], 1);
        return;
      }
      Move(axis_[k], -static_cast<std::int64_t>(back));
      axis_[k].at = 0;
    }
  }

 private:
  struct Axis {
    std::uint64_t extent;
    std::uint64_t at;
    std::int64_t step[kMaxForms];
  };

  // By how much a form changes from one multiple of `low` to the next, below `high`.
  static std::int64_t Step(const Access& form, std::uint64_t low, std::uint64_t high) {
    std::int64_t step = 0;
    for (std::size_t k = 0; k < form.runs; ++k) {
      const Run& run = form.run[k];
      if (run.div <= low && high <= run.div * run.mod) step += static_cast<std::int64_t>(low / run.div) * run.stride;
    }
    return step;
  }

  void Move(const Axis& axis, std::int64_t steps) {
    for (std::size_t f = 0; f < forms_; ++f) base_[f] += steps * axis.step[f];
  }

  const Access* form_[kMaxForms];
  std::size_t forms_ = 0;
  Axis axis_[kMaxAxes];
  std::size_t axes_ = 0;
  std::int64_t base_[kMaxForms] = {};
};

template <typename T>
void Copy(T* out, const T* from, std::int64_t step, std::int64_t n) {
  if (step == 1) {
    std::memcpy(out, from, static_cast<std::size_t>(n) * sizeof(T));
  } else if (step == 0) {
    std::fill_n(out, n, *from);
  } else {
    for (std::int64_t t = 0; t < n; ++t) out[t] = from[t * step];
  }
}

template <typename T>
void GatherElements(T* out, const T* data, const Access& access, const Condition* conditions, std::uint64_t first,
                    std::size_t n) {
  std::size_t guard[kMaxConditions];
  std::size_t guards = 0;
  Walk walk;
  walk.Add(&access);
  for (std::size_t k = 0; k < kMaxConditions; ++k) {
    if ((access.guards >> k & 1U) == 0) continue;
    guard[guards++] = k;
    walk.Add(&conditions[k].form);
  }
  if (!walk.Start(first)) {
    for (std::size_t j = 0; j < n; ++j) {
      bool inside = true;
      for (std::size_t g = 0; g < guards; ++g) inside = inside && conditions[guard[g]].Holds(first + j);
      out[j] = inside ? data[access.Offset(first + j)] : T{};
    }
    return;
  }
  while (n > 0) {
    const auto run = static_cast<std::int64_t>(std::min<std::uint64_t>(n, walk.left()));
    std::int64_t begin = 0;
    std::int64_t end = run;
    for (std::size_t g = 0; g < guards; ++g) {
      const Condition& c = conditions[guard[g]];
      Narrow(c.offset + walk.value(g + 1), walk.step(g + 1), c.low, c.high, &begin, &end);
    }
    std::fill_n(out, begin, T{});
    if (end > begin) Copy(out + begin, data + walk.value(0) + begin * walk.step(0), walk.step(0), end - begin);
    std::fill_n(out + end, run - end, T{});
    out += run;
    n -= static_cast<std::size_t>(run);
    walk.Next();
  }
}

}  // namespace

void GatherIndexed(void* out, const void* data, const Access& access, const Condition* conditions, std::size_t size,
                   std::uint64_t first, std::size_t n) {
  WithElementOf(size, [&](auto element) {
    using T = decltype(element);
    GatherElements(static_cast<T*>(out), static_cast<const T*>(data), access, conditions, first, n);
  });
}

void EvaluateCondition(void* out, const Condition& condition, std::uint64_t first, std::size_t n) {
  auto* flags = static_cast<std::uint8_t*>(out);
  Walk walk;
  walk.Add(&condition.form);
  if (!walk.Start(first)) {
    for (std::size_t j = 0; j < n; ++j) flags[j] = condition.Holds(first + j) ? 1 : 0;
    return;
  }
  while (n > 0) {
    const auto run = static_cast<std::int64_t>(std::min<std::uint64_t>(n, walk.left()));
    std::int64_t begin = 0;
    std::int64_t end = run;
    Narrow(condition.offset + walk.value(0), walk.step(0), condition.low, condition.high, &begin, &end);
    std::fill_n(flags, begin, std::uint8_t{0});
    std::fill_n(flags + begin, end - begin, std::uint8_t{1});
    std::fill_n(flags + end, run - end, std::uint8_t{0});
    flags += run;
    n -= static_cast<std::size_t>(run);
    walk.Next();
  }
}

}  // namespace onnxopt
