#include "cpu/pointwise.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "cpu/blocks/gather.h"
#include "cpu/blocks/gather_indexed.h"
#include "cpu/blocks/peephole.h"
#include "cpu/blocks/stream_store.h"
#include "cpu/blocks/tiling.h"
#include "cpu/first_failure.h"
#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt {
namespace {

constexpr std::size_t kLine = 64;
using costs::cpu::kMaxTasks;
using costs::cpu::kNanosecondsPerByte;
using costs::cpu::kNanosecondsPerCost;
using costs::cpu::kSerialNanoseconds;
using costs::cpu::kTaskNanoseconds;

// Memory that a thread keeps between tasks; it grows to the largest plan that ran on it.
class Scratch {
 public:
  unsigned char** Table(std::size_t places) {
    if (table_.size() < places) table_.resize(places);
    return table_.data();
  }
  unsigned char* Arena(std::size_t bytes) {
    if (arena_.size() < bytes + kLine) arena_.resize(bytes + kLine);
    const auto address = reinterpret_cast<std::uintptr_t>(arena_.data());
    return arena_.data() + (kLine - address % kLine) % kLine;
  }

 private:
  std::vector<unsigned char*> table_;
  std::vector<unsigned char> arena_;
};

// Steps only read what is input to them.
unsigned char* Bytes(const void* data) { return const_cast<unsigned char*>(static_cast<const unsigned char*>(data)); }

// Bytes that a call reads and writes, broadcast operands left out.
std::size_t OperandBytes(const Program& program, const Domain& domain) {
  std::size_t bytes = 0;
  for (std::size_t k = 0; k < program.accesses(); ++k) {
    if (domain.access[k].Flat(domain.count)) bytes += domain.count * Size(program.leaf(k));
  }
  for (std::size_t k = 0; k < program.outputs.size(); ++k) {
    if (domain.output[k] != nullptr) bytes += domain.count * Size(program.outputs[k]);
  }
  return bytes;
}

// Whether an output has the buffer of an input: steps of a plan read and write in any order.
bool InPlace(const Program& program, const Domain& domain) {
  const auto is_input = [&](const void* output) {
    const void* const* end = domain.input + program.accesses();
    return output != nullptr && std::find(domain.input, end, output) != end;
  };
  return std::any_of(domain.output, domain.output + program.outputs.size(), is_input);
}

// One call's work, shared by the threads that do it.
class Job {
 public:
  Job(const Program& program, const Plan& plan, const Tiling& tiling, const Domain& domain, std::uint64_t task,
      bool streams)
      : program_(program),
        plan_(plan),
        tiling_(tiling),
        domain_(domain),
        task_(task),
        streams_(streams),
        staged_(streams || InPlace(program, domain)) {}

  std::uint64_t tasks() const { return CeilDiv(domain_.count, task_); }

  void Run(std::uint64_t t) noexcept {
    failure_.Guard([&] { RunRange(t * task_, std::min(domain_.count, (t + 1) * task_)); });
  }

  void Finish() const { failure_.Rethrow(); }

  // Throws Error where an integer is divided by zero.
  void RunRange(std::uint64_t first, std::uint64_t last) const {
    thread_local Scratch scratch;
    unsigned char** const at = scratch.Table(plan_.places);
    unsigned char* const arena = scratch.Arena(plan_.arena + (staged_ ? StagedBytes() : 0));
    for (const Slot& slot : plan_.slots) at[slot.place] = arena + slot.offset;
    for (const Slot& constant : plan_.constants)
      at[constant.place] = Bytes(program_.code[constant.offset].value.data());
    unsigned char zero_divisor = 0;
    if (plan_.zero_divisor != kNoPlace) at[plan_.zero_divisor] = &zero_divisor;
    for (const std::uint32_t k : plan_.used) PrepareInput(k, at, first);
    for (const Step& step : plan_.prologue) RunStep(step, at, plan_.block);
    for (std::uint64_t i = first; i < last;) {
      const std::uint64_t rest = std::min(last - i, tiling_.row - i % tiling_.row);
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(rest, plan_.block));
      RunBlock(i, n, at, arena + plan_.arena);
      i += n;
    }
    if (streams_) StreamFence();
    if (zero_divisor != 0) throw Error("integer division or modulo by zero");
  }

 private:
  // Of one block of every output; on the stack of slots, so each begins on a cache line.
  std::size_t StagedBytes() const {
    std::size_t bytes = 0;
    for (const Dtype dtype : program_.outputs) bytes += Staged(dtype);
    return bytes;
  }

  std::size_t Staged(Dtype dtype) const { return (plan_.block * Size(dtype) / kLine + 1) * kLine; }

  static void RunStep(const Step& step, unsigned char* const* at, std::size_t n) {
    step.run(at[step.out], at[step.a], at[step.b], at[step.c], step.once ? 1 : n);
  }

  // Inputs that stay the same for the whole task.
  void PrepareInput(std::uint32_t k, unsigned char** at, std::uint64_t first) const {
    const Lie lie = tiling_.key.lie[k];
    unsigned char*& raw = at[plan_.first_raw_input + k];
    if (lie == Lie::kOne) raw = Bytes(domain_.input[k]);
    if (lie != Lie::kPeriod) return;
    Gather(raw, domain_.input[k], domain_.access[k], Size(program_.inputs[k]), first, plan_.block);
  }

  // `staged`: where outputs are computed before they are copied out.
  void RunBlock(std::uint64_t i, std::size_t n, unsigned char** at, unsigned char* staged) const {
    for (const std::uint32_t k : plan_.used) {
      const std::size_t size = Size(program_.leaf(k));
      unsigned char*& raw = at[plan_.first_raw_input + k];
      switch (tiling_.key.lie[k]) {
        case Lie::kFlat:
          raw = Bytes(domain_.input[k]) + i * size;
          break;
        case Lie::kDense:
        case Lie::kCell:
          raw = Bytes(domain_.input[k]) + domain_.access[k].Offset(i) * static_cast<std::int64_t>(size);
          break;
        case Lie::kGather:
          if (domain_.indexed) {
            GatherIndexed(raw, domain_.input[k], domain_.access[k], domain_.condition, size, i, n);
          } else {
            Gather(raw, domain_.input[k], domain_.access[k], size, i, n);
          }
          break;
        case Lie::kCondition:
          EvaluateCondition(raw, domain_.ConditionOf(k), i, n);
          break;
        default:
          break;
      }
    }
    unsigned char* stage = staged;
    for (std::size_t k = 0; k < program_.outputs.size(); ++k) {
      const Dtype dtype = program_.outputs[k];
      at[plan_.first_output + k] = staged_ ? stage : Bytes(domain_.output[k]) + i * Size(dtype);
      stage += Staged(dtype);
    }
    for (const Step& step : plan_.body) RunStep(step, at, n);
    if (!staged_) return;
    for (std::size_t k = 0; k < program_.outputs.size(); ++k) {
      const std::size_t size = Size(program_.outputs[k]);
      if (domain_.output[k] == nullptr) continue;
      unsigned char* const to = Bytes(domain_.output[k]) + i * size;
      if (streams_) {
        StreamCopy(to, at[plan_.first_output + k], n * size);
      } else {
        std::memcpy(to, at[plan_.first_output + k], n * size);
      }
    }
  }

  const Program& program_;
  const Plan& plan_;
  const Tiling& tiling_;
  const Domain& domain_;
  const std::uint64_t task_;  // elements a task, a multiple of the block
  const bool streams_;        // outputs go past the caches
  const bool staged_;         // a block of outputs is written when all of its inputs were read
  FirstFailure failure_;
};

}  // namespace

double NanosecondsPerElement(const Program& program) {
  double cost = 0;
  double bytes = 0;
  for (const Instruction& i : program.code) cost += Row(i.op).cost;
  for (const Dtype dtype : program.inputs) bytes += static_cast<double>(Size(dtype));
  for (const Dtype dtype : program.outputs) bytes += static_cast<double>(Size(dtype));
  return cost * kNanosecondsPerCost + bytes * kNanosecondsPerByte;
}

PointwiseCpuKernel::PointwiseCpuKernel(const Kernel& kernel)
    : PointwiseKernel(kernel), program_(Peephole(program())), cost_(NanosecondsPerElement(program_)), plans_(program_) {
  if (program_.index && program_.index->LooksUp()) throw Error("no CPU kernel looks indices up; cpu has to be false");
}

void RunBlocks(const Program& program, const Plan& plan, const Tiling& tiling, const Domain& domain,
               std::uint64_t first, std::uint64_t last) {
  Job(program, plan, tiling, domain, domain.count, false).RunRange(first, last);
}

void PointwiseCpuKernel::Run(const Domain& domain, OrtKernelContext* context) const {
  const Tiling tiling = Tile(program_, domain);
  const std::shared_ptr<const Plan> plan = plans_.For(tiling.key);
  const double total = static_cast<double>(domain.count) * cost_;
  std::uint64_t task = domain.count;
  if (total > kSerialNanoseconds) {
    const auto wanted = std::min(kMaxTasks, static_cast<std::uint64_t>(total / kTaskNanoseconds));
    task = RoundUp(CeilDiv(domain.count, wanted), plan->block);
  }
  Job job(program_, *plan, tiling, domain, task, ExceedsCache(OperandBytes(program_, domain)));
  if (job.tasks() == 1) {
    job.Run(0);
  } else {
    const auto run = [](void* data, std::size_t t) { static_cast<Job*>(data)->Run(t); };
    Check(Ort().KernelContext_ParallelFor(context, run, job.tasks(), 0, &job));
  }
  job.Finish();
}

}  // namespace onnxopt
