#include "program/programs/reach.h"

#include <algorithm>

#include "device/abi.h"
#include "support/error.h"

namespace onnxopt {
namespace {

// Farther from a tensor's beginning lies nothing: bytes and differences of such numbers still fit 64 bits.
constexpr std::int64_t kFarthest = std::int64_t{1} << 56U;
constexpr std::size_t kMaxForms = 1 + kMaxConditions;
constexpr std::size_t kMaxCuts = 2 + 2 * kMaxForms * static_cast<std::size_t>(kMaxTerms);

// Values from `low` to `high`; none where low > high.
struct Range {
  std::int64_t low = 0;
  std::int64_t high = 0;

  bool empty() const { return low > high; }
  void Add(const Range& other) {
    low += other.low;
    high += other.high;
  }
};

// Of digit * step for a digit from 0 to extent - 1.
Range Along(std::uint64_t extent, std::int64_t step) {
  const std::int64_t last = static_cast<std::int64_t>(extent - 1) * step;
  return {std::min<std::int64_t>(last, 0), std::max<std::int64_t>(last, 0)};
}

// Of a form where its terms take their digits independently of each other.
Range Box(const Access& form) {
  Range range;
  for (std::size_t k = 0; k < form.runs; ++k) range.Add(Along(form.run[k].mod, form.run[k].stride));
  return range;
}

[[noreturn]] void Fail(const std::string& problem) {
  throw Error("index: " + problem + "; kernels.json is damaged or of another model");
}

void CheckForm(const Access& form, std::int64_t offset, std::uint64_t count) {
  bool fits = offset >= -kFarthest && offset <= kFarthest;
  std::uint64_t sum = 0;
  if (form.step != 0 && form.size > 0) {
    const auto others = static_cast<std::uint64_t>(form.size - 1);
    fits = fits && form.step > 0 && !__builtin_mul_overflow(others, static_cast<std::uint64_t>(form.step), &sum) &&
           sum <= static_cast<std::uint64_t>(kFarthest);
  }
  for (std::size_t k = 0; k < form.runs; ++k) {
    const Run& run = form.run[k];
    std::uint64_t digits = 0;
    std::uint64_t reach = 0;
    if (run.div == 0 || run.mod == 0) Fail("a term divides by 0");
    if (__builtin_mul_overflow(run.div, run.mod, &digits) || digits > count) Fail("a term leaves the domain");
    const auto stride = static_cast<std::uint64_t>(run.stride);
    fits = fits && !__builtin_mul_overflow(run.mod - 1, run.stride < 0 ? -stride : stride, &reach) &&
           !__builtin_add_overflow(sum, reach, &sum) && sum <= static_cast<std::uint64_t>(kFarthest);
  }
  if (!fits) Fail("a position lies too far away");
}

// The index as digits of a mixed radix in which every form is linear: an access, then its guards.
class Digits {
 public:
  Digits(const Access& access, std::int64_t offset, const Condition* conditions) : offset_(offset) {
    form_[forms_++] = &access;
    for (std::size_t k = 0; k < kMaxConditions; ++k) {
      if ((access.guards >> k & 1U) == 0) continue;
      guard_[forms_] = &conditions[k];
      form_[forms_++] = &conditions[k].form;
    }
    Cut();
  }

  // Of the access, where all guards hold.
  Range Values() {
    Range values{offset_, offset_};
    std::uint32_t seen = 0;  // guards of components that were looked at
    for (std::size_t g = 1; g < forms_; ++g) {
      if ((seen >> g & 1U) != 0) continue;
      const std::uint32_t component = Component(g);
      seen |= component;
      const Range part = Over(component);
      if (part.empty()) return part;
      values.Add(part);
    }
    for (std::size_t d = 0; d < digits_; ++d) {
      if (Guards(d) == 0) values.Add(Along(extent_[d], step_[d][0]));
    }
    return values;
  }

 private:
  void Cut() {
    std::uint64_t cut[kMaxCuts] = {1};
    std::size_t cuts = 1;
    for (std::size_t f = 0; f < forms_; ++f) {
      for (std::size_t k = 0; k < form_[f]->runs; ++k) {
        cut[cuts++] = form_[f]->run[k].div;
        cut[cuts++] = form_[f]->run[k].div * form_[f]->run[k].mod;
      }
    }
    std::sort(cut, cut + cuts);
    cuts = static_cast<std::size_t>(std::unique(cut, cut + cuts) - cut);
    for (; digits_ + 1 < cuts; ++digits_) {
      const std::uint64_t low = cut[digits_];
      const std::uint64_t high = cut[digits_ + 1];
      if (high % low != 0) Fail("terms cut the domain at places that do not fit into one another");
      extent_[digits_] = high / low;
      for (std::size_t f = 0; f < forms_; ++f) step_[digits_][f] = Step(*form_[f], low, high);
    }
  }

  // By how much a form changes from one multiple of `low` to the next, below `high`.
  static std::int64_t Step(const Access& form, std::uint64_t low, std::uint64_t high) {
    std::int64_t step = 0;
    for (std::size_t k = 0; k < form.runs; ++k) {
      const Run& run = form.run[k];
      if (run.div <= low && high <= run.div * run.mod) step += static_cast<std::int64_t>(low / run.div) * run.stride;
    }
    return step;
  }

  // Bit g: guard g depends on digit d.
  std::uint32_t Guards(std::size_t d) const {
    std::uint32_t guards = 0;
    for (std::size_t g = 1; g < forms_; ++g) guards |= step_[d][g] != 0 ? 1U << g : 0U;
    return guards;
  }

  // The guards that share digits with guard g, with its neighbours, and so on.
  std::uint32_t Component(std::size_t g) const {
    std::uint32_t component = 1U << g;
    for (bool grown = true; grown;) {
      grown = false;
      for (std::size_t d = 0; d < digits_; ++d) {
        const std::uint32_t guards = Guards(d);
        if ((guards & component) == 0 || (guards & ~component) == 0) continue;
        component |= guards;
        grown = true;
      }
    }
    return component;
  }

  // What the digits of a component of guards add to the access where these hold: every combination of them but for the
  // longest digit, along which the guards leave a range.
  Range Over(std::uint32_t component) {
    std::size_t own[kMaxCuts];
    std::size_t count = 0;
    for (std::size_t d = 0; d < digits_; ++d) {
      if ((Guards(d) & component) != 0) own[count++] = d;
    }
    std::sort(own, own + count, [&](std::size_t a, std::size_t b) { return extent_[a] > extent_[b]; });
    std::uint64_t at[kMaxCuts] = {};
    std::int64_t value[kMaxForms] = {};
    for (std::size_t g = 1; g < forms_; ++g) value[g] = guard_[g]->offset;
    Range range{1, 0};
    for (;;) {
      Join(AlongLongest(component, count == 0 ? digits_ : own[0], value), &range);
      std::size_t k = 1;
      for (; k < count; ++k) {
        const std::size_t d = own[k];
        const bool carries = ++at[k] == extent_[d];
        const std::int64_t steps = carries ? -static_cast<std::int64_t>(extent_[d] - 1) : 1;
        for (std::size_t f = 0; f < forms_; ++f) value[f] += steps * step_[d][f];
        if (!carries) break;
        at[k] = 0;
      }
      if (k >= count) return range;
    }
  }

  static void Join(const Range& other, Range* range) {
    if (other.empty()) return;
    *range = range->empty() ? other : Range{std::min(range->low, other.low), std::max(range->high, other.high)};
  }

  // Of the access along digit d (none: at one place), where the guards of a component hold. value: of every form where
  // the digit is 0.
  Range AlongLongest(std::uint32_t component, std::size_t d, const std::int64_t* value) const {
    std::int64_t begin = 0;
    std::int64_t end = d < digits_ ? static_cast<std::int64_t>(extent_[d]) : 1;
    for (std::size_t g = 1; g < forms_; ++g) {
      if ((component >> g & 1U) == 0) continue;
      Narrow(value[g], d < digits_ ? step_[d][g] : 0, guard_[g]->low, guard_[g]->high, &begin, &end);
    }
    if (begin >= end) return {1, 0};
    const std::int64_t step = d < digits_ ? step_[d][0] : 0;
    const std::int64_t first = value[0] + begin * step;
    const std::int64_t last = value[0] + (end - 1) * step;
    return {std::min(first, last), std::max(first, last)};
  }

  const std::int64_t offset_;
  const Access* form_[kMaxForms];
  const Condition* guard_[kMaxForms] = {};
  std::size_t forms_ = 0;
  std::uint64_t extent_[kMaxCuts];
  std::int64_t step_[kMaxCuts][kMaxForms];
  std::size_t digits_ = 0;
};

bool Inside(const Range& range, std::uint64_t elements) {
  return range.empty() || (range.low >= 0 && static_cast<std::uint64_t>(range.high) < elements);
}

}  // namespace

void CheckNumbers(const Access& access, std::int64_t offset, std::uint64_t count) { CheckForm(access, offset, count); }

void CheckNumbers(const Condition& condition, std::uint64_t count) {
  CheckForm(condition.form, condition.offset, count);
  for (const std::int64_t bound : {condition.low, condition.high}) {
    if (bound < -4 * kFarthest || bound > 4 * kFarthest) Fail("a bound lies too far away");
  }
}

bool ReadsInside(const Access& access, std::int64_t offset, const Condition* conditions, std::uint64_t count,
                 std::uint64_t elements) {
  if (access.step != 0 && access.size == 0) return true;  // no index lies inside of the dim
  const Range along = access.step == 0 ? Range{} : Along(static_cast<std::uint64_t>(access.size), access.step);
  Range box = Box(access);
  box.Add({offset, offset});
  box.Add(along);
  if (Inside(box, elements)) return true;
  if (access.guards == 0 || count == 0) return false;
  Range values = Digits(access, offset, conditions).Values();
  if (!values.empty()) values.Add(along);
  return Inside(values, elements);
}

}  // namespace onnxopt
