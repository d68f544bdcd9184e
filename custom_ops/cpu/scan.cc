#include "cpu/scan.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu/blocks/peephole.h"
#include "cpu/first_failure.h"
#include "cpu/pointwise.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kBlock = costs::cpu::kRowBlock;
constexpr std::uint64_t kPart = costs::cpu::kPartBlocks * kBlock;
using costs::cpu::kMaxTasks;
using costs::cpu::kMinColumnsOfPart;
using costs::cpu::kNanosecondsPerElement;
using costs::cpu::kSerialNanoseconds;
using costs::cpu::kTaskNanoseconds;

// Running totals are kept in this: float32's are rounded once, when they are handed on. Integers wrap.
template <typename T>
struct Running {
  using type = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::common_type<double>>;
};

// A program over the elements of a grid, ready to run.
class Runner {
 public:
  // total: whether the program reads the running total behind the inputs.
  Runner(const Program& program, const PlanCache& plans, const Grid& grid, bool total)
      : program_(program), domain_(grid.domain) {
    const std::size_t inputs = program.inputs.size() - (total ? 1 : 0);
    static const unsigned char somewhere = 0;  // outputs that are written are told apart by not being null
    if (total) {
      const auto count = static_cast<std::int64_t>(grid.domain.count);
      domain_.input[inputs] = &somewhere;
      Collapse(Shape{1, {count}}, Shape{1, {count}}, &domain_.access[inputs]);
    } else {
      domain_.output[0] = const_cast<unsigned char*>(&somewhere);
    }
    tiling_ = Tile(program, domain_);
    plan_ = plans.For(tiling_.key);
  }

  // Computes elements first .. last - 1 into `values`, which begins with the first of them.
  void Compute(std::uint64_t first, std::uint64_t last, unsigned char* values) const {
    Domain domain = domain_;
    domain.output[0] = Before(values, first, Size(program_.outputs[0]));
    RunBlocks(program_, *plan_, tiling_, domain, first, last);
  }

  // Stores elements first .. last - 1, the totals of which lie at `values`.
  void Store(std::uint64_t first, std::uint64_t last, unsigned char* values) const {
    Domain domain = domain_;
    const std::size_t total = program_.inputs.size() - 1;
    domain.input[total] = Before(values, first, Size(program_.inputs[total]));
    RunBlocks(program_, *plan_, tiling_, domain, first, last);
  }

 private:
  // `data` moved so that what is at index `first` of the result is its beginning. Never dereferenced below that.
  static unsigned char* Before(unsigned char* data, std::uint64_t first, std::size_t size) {
    return reinterpret_cast<unsigned char*>(reinterpret_cast<std::uintptr_t>(data) - first * size);
  }

  const Program& program_;
  Domain domain_;
  Tiling tiling_;
  std::shared_ptr<const Plan> plan_;
};

// One call's work. A slab is all elements of one index of the outer dim; rows lie side by side in it.
template <typename T>
class ScanJob {
  using Sum = typename Running<T>::type::type;

 public:
  ScanJob(const Scan& scan, const Grid& grid, const Runner& element, const Runner& output)
      : scan_(scan), grid_(grid), element_(element), output_(output), slab_(grid.columns * grid.inner) {}

  // Cuts the work into parts, which `parallel` runs side by side: parallel(count, body) calls body(k) for every k below
  // count. What parts are does not depend on the threads, and neither do results. wanted: how many there should be, at
  // least one.
  template <typename Parallel>
  void Run(std::uint64_t wanted, Parallel&& parallel) {
    if (grid_.outer == 0 || wanted == 0) return;
    if (grid_.outer >= wanted || grid_.columns < 2 * PartColumns()) {
      const std::uint64_t task = CeilDiv(grid_.outer, wanted);
      parallel(CeilDiv(grid_.outer, task), [&](std::uint64_t t) {
        std::vector<Sum> carry(grid_.inner);
        Part(t * task * slab_, std::min(grid_.outer, (t + 1) * task) * slab_, carry.data(), true);
      });
    } else {
      RunLong(parallel);
    }
    failure_.Rethrow();
  }

  template <typename Body>
  void Guard(Body&& body) noexcept {
    failure_.Guard(body);
  }

 private:
  // Every row is cut into parts: their sums, then what lies before each, then totals.
  template <typename Parallel>
  void RunLong(Parallel&& parallel) {
    const std::uint64_t parts = CeilDiv(grid_.columns, PartColumns());
    const std::uint64_t count = grid_.outer * parts;
    std::vector<Sum> sums(count * grid_.inner);
    parallel(count, [&](std::uint64_t t) {
      Part(PartBegin(t, parts), PartBegin(t + 1, parts), sums.data() + t * grid_.inner, false);
    });
    for (std::uint64_t o = 0; o < grid_.outer; ++o) {
      std::vector<Sum> before(grid_.inner);
      for (std::uint64_t p = 0; p < parts; ++p) {
        Sum* own = sums.data() + (o * parts + (scan_.reverse ? parts - 1 - p : p)) * grid_.inner;
        for (std::uint64_t j = 0; j < grid_.inner; ++j) {
          const Sum next = before[j] + own[j];
          own[j] = before[j];
          before[j] = next;
        }
      }
    }
    parallel(count, [&](std::uint64_t t) {
      Part(PartBegin(t, parts), PartBegin(t + 1, parts), sums.data() + t * grid_.inner, true);
    });
  }

  std::uint64_t PartColumns() const {
    return std::max(kPart / std::max<std::uint64_t>(grid_.inner, 1), kMinColumnsOfPart);
  }

  // The first element of part t, of so many a row.
  std::uint64_t PartBegin(std::uint64_t t, std::uint64_t parts) const {
    const std::uint64_t column = std::min(t % parts * PartColumns(), grid_.columns);
    return (t / parts * grid_.columns + column) * grid_.inner;
  }

  // Elements first .. last - 1 in the order they are summed up in, block by block. carry: of each row side by side what
  // lies before, then with them. stores: else only sums are wanted.
  void Part(std::uint64_t first, std::uint64_t last, Sum* carry, bool stores) const {
    thread_local std::vector<T> values;
    if (values.size() < kBlock) values.resize(kBlock);
    auto* const data = reinterpret_cast<unsigned char*>(values.data());
    for (std::uint64_t done = 0; done < last - first; done += kBlock) {
      const std::uint64_t n = std::min(kBlock, last - first - done);
      const std::uint64_t begin = scan_.reverse ? last - done - n : first + done;
      element_.Compute(begin, begin + n, data);
      SumUp(values.data(), begin, n, carry);
      if (stores) output_.Store(begin, begin + n, data);
    }
  }

  // The n elements from `begin` on become their totals. Where a slab begins, sums begin anew: nothing lies before.
  void SumUp(T* values, std::uint64_t begin, std::uint64_t n, Sum* carry) const {
    for (std::uint64_t done = 0; done < n;) {
      const std::uint64_t at = scan_.reverse ? begin + n - done : begin + done;
      const std::uint64_t into = scan_.reverse ? (slab_ - at % slab_) % slab_ : at % slab_;  // the slab
      if (into == 0) std::fill_n(carry, grid_.inner, Sum(0));
      const std::uint64_t run = std::min(n - done, slab_ - into);
      if (grid_.inner == 1) {
        Along(scan_.reverse ? values + n - done - run : values + done, run, carry);
      } else {
        Across(values, scan_.reverse ? n - done - run : done, begin, run, carry);
      }
      done += run;
    }
  }

  void Along(T* values, std::uint64_t n, Sum* carry) const {
    Sum sum = *carry;
    for (std::uint64_t k = 0; k < n; ++k) {
      T& value = values[scan_.reverse ? n - 1 - k : k];
      const Sum before = sum;
      sum += static_cast<Sum>(value);
      value = static_cast<T>(scan_.exclusive ? before : sum);
    }
    *carry = sum;
  }

  // The elements values[from] .. values[from + n - 1], of which values[0] is element `begin`: neighbours belong to rows
  // that lie side by side.
  void Across(T* values, std::uint64_t from, std::uint64_t begin, std::uint64_t n, Sum* carry) const {
    for (std::uint64_t done = 0; done < n;) {
      const std::uint64_t place = scan_.reverse ? from + n - done : from + done;
      const std::uint64_t row = (begin + place) % grid_.inner;
      const std::uint64_t behind = row == 0 ? grid_.inner : row;
      const std::uint64_t run = std::min(n - done, scan_.reverse ? behind : grid_.inner - row);
      T* const value = values + (scan_.reverse ? place - run : place);
      Sum* const sum = carry + (scan_.reverse ? behind - run : row);
      for (std::uint64_t j = 0; j < run; ++j) {
        const Sum before = sum[j];
        sum[j] = before + static_cast<Sum>(value[j]);
        value[j] = static_cast<T>(scan_.exclusive ? before : sum[j]);
      }
      done += run;
    }
  }

  const Scan& scan_;
  const Grid& grid_;
  const Runner& element_;
  const Runner& output_;
  const std::uint64_t slab_;
  FirstFailure failure_;
};

template <typename Body>
void WithSummed(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::kFloat32:
      return body(float{});
    case Dtype::kFloat64:
      return body(double{});
    case Dtype::kInt32:
      return body(std::int32_t{});
    case Dtype::kInt64:
      return body(std::int64_t{});
    case Dtype::kUint32:
      return body(std::uint32_t{});
    default:
      return body(std::uint64_t{});
  }
}

}  // namespace

ScanCpuKernel::ScanCpuKernel(const Kernel& kernel)
    : RowKernel(kernel, kernel.meaning.As<Scan>().rows),
      scan_(kernel.meaning.As<Scan>()),
      element_(Peephole(scan_.element)),
      output_(Peephole(scan_.output)),
      cost_(NanosecondsPerElement(element_) + NanosecondsPerElement(output_) + kNanosecondsPerElement),
      element_plans_(element_),
      output_plans_(output_) {}

void ScanCpuKernel::Run(const Grid& grid, OrtKernelContext* context) const {
  const double total = static_cast<double>(grid.domain.count) * cost_;
  std::uint64_t wanted = 1;
  if (total > kSerialNanoseconds) {
    wanted = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(total / kTaskNanoseconds), 1, kMaxTasks);
  }
  const Runner element(element_, element_plans_, grid, false);
  const Runner output(output_, output_plans_, grid, true);
  WithSummed(scan_.total(), [&](auto value) {
    ScanJob<decltype(value)> job(scan_, grid, element, output);
    job.Run(wanted, [&](std::uint64_t count, auto&& body) {
      auto guarded = [&](std::size_t t) { job.Guard([&] { body(t); }); };
      if (count == 1) return guarded(0);
      using Guarded = decltype(guarded);
      const auto run = [](void* data, std::size_t t) { (*static_cast<Guarded*>(data))(t); };
      Check(Ort().KernelContext_ParallelFor(context, run, count, 0, &guarded));
    });
  });
}

}  // namespace onnxopt
