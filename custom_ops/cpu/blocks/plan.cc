#include "cpu/blocks/plan.h"

#include <algorithm>
#include <cstring>

#include "program/generated/costs.h"
#include "support/math.h"

namespace onnxopt {
namespace {

constexpr std::uint32_t kNone = ~0U;
constexpr std::size_t kLine = 64;  // bytes; slots begin on a cache line
using costs::cpu::kLongestBlock;
using costs::cpu::kShortestBlock;
using costs::cpu::kWorkingSet;

// How often a value changes: the operands of a step that changes less often are computed less often.
enum class Rate : std::uint8_t { kTask, kBlock, kElement };

template <std::size_t kSize>
void Copy(void* out, const void* a, const void*, const void*, std::size_t n) {
  std::memcpy(out, a, n * kSize);
}

StepFunction CopyStep(std::size_t size) {
  return size == 1 ? Copy<1> : size == 2 ? Copy<2> : size == 4 ? Copy<4> : Copy<8>;
}

// Builds one plan. Memory is handed out in slots of `block` elements, which are reused as soon as no later step reads
// them; a step's result never shares a slot with its operands.
class Planner {
 public:
  Planner(const Program& program, const PlanKey& key, const Evaluator& evaluator)
      : program_(program), key_(key), evaluator_(evaluator) {}

  Plan Make() {
    const std::size_t ids = program_.ids();
    plan_.first_raw_input = static_cast<Place>(ids);
    plan_.first_output = static_cast<Place>(ids + program_.leaves());
    plan_.zero_divisor = kNoPlace;
    plan_.places = static_cast<std::uint32_t>(plan_.first_output + program_.outputs.size());
    rate_.assign(ids, Rate::kTask);
    place_.assign(ids, kNone);
    filled_.assign(ids, kNone);
    slot_.assign(ids, kNone);
    FindUses();
    for (std::size_t k = 0; k < program_.leaves(); ++k) PlaceInput(k);
    for (std::size_t k = 0; k < program_.code.size(); ++k) {
      if (last_use_[program_.leaves() + k] != kNone) Emit(k);
    }
    LayOut();
    return std::move(plan_);
  }

 private:
  struct Memory {
    std::size_t size;  // bytes an element
    bool whole;        // a block of elements, not one
    std::vector<Place> places;
  };

  bool Written(std::size_t output) const { return (key_.written >> output & 1U) != 0; }

  // last_use_[id]: the instruction that reads it last, ids() for a result, kNone where nothing needs it.
  void FindUses() {
    last_use_.assign(program_.ids(), kNone);
    for (std::size_t k = 0; k < program_.results.size(); ++k) {
      if (Written(k)) last_use_[program_.results[k]] = static_cast<std::uint32_t>(program_.ids());
    }
    for (std::size_t k = program_.code.size(); k-- > 0;) {
      const std::size_t id = program_.leaves() + k;
      if (last_use_[id] == kNone) continue;
      for (const std::uint32_t a : program_.code[k].args) {
        if (last_use_[a] == kNone) last_use_[a] = static_cast<std::uint32_t>(id);
      }
    }
  }

  std::uint32_t Allocate(std::size_t size, bool whole, bool reusable) {
    if (whole && reusable) {
      for (std::size_t f = 0; f < free_.size(); ++f) {
        if (memory_[free_[f]].size != size) continue;
        const std::uint32_t slot = free_[f];
        free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(f));
        return slot;
      }
    }
    memory_.push_back({size, whole, {}});
    return static_cast<std::uint32_t>(memory_.size() - 1);
  }

  // Gives `place` memory of its own that lasts for the whole task.
  void Keep(Place place, std::size_t size, bool whole) {
    memory_[Allocate(size, whole, false)].places.push_back(place);
  }

  Place NewPlace() { return plan_.places++; }

  std::vector<Step>& Code(Rate rate) { return rate == Rate::kTask ? plan_.prologue : plan_.body; }

  void PlaceInput(std::size_t k) {
    if (last_use_[k] == kNone) return;
    plan_.used.push_back(static_cast<std::uint32_t>(k));
    const Lie lie = key_.lie[k];
    const Dtype storage = program_.leaf(k);
    const auto raw = static_cast<Place>(plan_.first_raw_input + k);
    const bool gathered = lie == Lie::kPeriod || lie == Lie::kGather || lie == Lie::kCondition;
    rate_[k] = lie == Lie::kOne ? Rate::kTask : lie == Lie::kCell ? Rate::kBlock : Rate::kElement;
    if (gathered) Keep(raw, Size(storage), true);
    const StepFunction load = evaluator_.load(storage);
    if (load == nullptr) {
      place_[k] = raw;
    } else {
      place_[k] = static_cast<Place>(k);
      Keep(place_[k], Size(Row(storage).compute), rate_[k] == Rate::kElement);
      Code(lie == Lie::kPeriod ? Rate::kTask : rate_[k])
          .push_back({load, place_[k], raw, raw, raw, rate_[k] != Rate::kElement});
    }
    Store(k);
  }

  // A dense array holding value `id`, which changes less often than every element.
  Place Filled(std::size_t id) {
    if (filled_[id] != kNone) return filled_[id];
    const std::size_t size = Size(program_.dtype(id));
    filled_[id] = NewPlace();
    Keep(filled_[id], size, true);
    Code(rate_[id]).push_back({evaluator_.fill(size), filled_[id], place_[id], place_[id], place_[id], false});
    return filled_[id];
  }

  void Emit(std::size_t k) {
    const Instruction& i = program_.code[k];
    const std::size_t id = program_.leaves() + k;
    place_[id] = static_cast<Place>(id);
    if (i.op == Op::kConst) {
      plan_.constants.push_back({place_[id], static_cast<std::uint32_t>(k)});
      Store(id);
      return;
    }
    for (const std::uint32_t a : i.args) rate_[id] = std::max(rate_[id], rate_[a]);
    FindZeros(i);
    const bool whole = rate_[id] == Rate::kElement;
    const StepKey key{i.op, i.dtype, program_.dtype(i.args.back()), i.storage};
    Splats splats = 0;
    for (std::size_t a = 0; whole && a < i.args.size(); ++a) {
      if (rate_[i.args[a]] != Rate::kElement) splats |= 1U << a;
    }
    StepFunction run = evaluator_.step(key, splats);
    const bool fill = run == nullptr;
    if (fill) run = evaluator_.step(key, 0);
    Place operands[3] = {place_[i.args[0]], place_[i.args[0]], place_[i.args[0]]};
    for (std::size_t a = 0; a < i.args.size(); ++a) {
      operands[a] = fill && (splats >> a & 1U) != 0 ? Filled(i.args[a]) : place_[i.args[a]];
    }
    PlaceResult(id, whole);
    Code(rate_[id]).push_back({run, place_[id], operands[0], operands[1], operands[2], !whole});
    Store(id);
    Free(i, static_cast<std::uint32_t>(id));
  }

  // Looks for zeros in the divisor of an integer division.
  void FindZeros(const Instruction& i) {
    const DtypeKind kind = Row(i.dtype).kind;
    const bool integer = kind == DtypeKind::kSigned || kind == DtypeKind::kUnsigned;
    const bool divides = i.op == Op::kDiv || i.op == Op::kMod || i.op == Op::kFmod;
    if (!key_.finds_zeros || !integer || !divides) return;
    const std::uint32_t divisor = i.args[1];
    if (plan_.zero_divisor == kNoPlace) plan_.zero_divisor = NewPlace();
    const Place from = place_[divisor];
    Code(rate_[divisor])
        .push_back({evaluator_.find_zero(Size(i.dtype)), plan_.zero_divisor, from, from, from,
                    rate_[divisor] != Rate::kElement});
  }

  // Gives a value its memory: the output itself where it is stored as it is.
  void PlaceResult(std::size_t id, bool whole) {
    const Dtype dtype = program_.dtype(id);
    for (std::size_t k = 0; whole && k < program_.results.size(); ++k) {
      if (program_.results[k] != id || !Written(k) || program_.outputs[k] != dtype) continue;
      place_[id] = static_cast<Place>(plan_.first_output + k);
      return;
    }
    if (!whole) return Keep(place_[id], Size(dtype), false);
    slot_[id] = Allocate(Size(dtype), true, true);
    memory_[slot_[id]].places.push_back(place_[id]);
  }

  // Writes value `id` to the outputs that it is the result of.
  void Store(std::size_t id) {
    for (std::size_t k = 0; k < program_.results.size(); ++k) {
      const auto output = static_cast<Place>(plan_.first_output + k);
      if (program_.results[k] != id || !Written(k) || place_[id] == output) continue;
      const Place from = rate_[id] == Rate::kElement ? place_[id] : Filled(id);
      StepFunction store = evaluator_.store(program_.outputs[k]);
      if (store == nullptr) store = CopyStep(Size(program_.outputs[k]));
      plan_.body.push_back({store, output, from, from, from, false});
    }
  }

  // Takes back the slots of values that instruction `id` read last, and of a result that nothing else reads.
  void Free(const Instruction& i, std::uint32_t id) {
    const auto release = [this](std::size_t value) {
      if (slot_[value] == kNone) return;
      free_.push_back(slot_[value]);
      slot_[value] = kNone;
    };
    for (const std::uint32_t a : i.args) {
      if (last_use_[a] == id) release(a);
    }
  }

  void LayOut() {
    std::size_t bytes = 0;  // an element of the block
    for (const Memory& m : memory_) bytes += m.whole ? m.size : 0;
    for (const std::uint32_t k : plan_.used) {
      const bool in_place = key_.lie[k] == Lie::kFlat || key_.lie[k] == Lie::kDense;
      bytes += in_place ? Size(program_.leaf(k)) : 0;
    }
    for (std::size_t k = 0; k < program_.outputs.size(); ++k) bytes += Written(k) ? Size(program_.outputs[k]) : 0;
    const auto fitting =
        static_cast<std::uint32_t>(std::min<std::size_t>(kWorkingSet / std::max<std::size_t>(bytes, 1), kLongestBlock));
    const std::uint32_t unit = std::max<std::uint32_t>(key_.period, 1);
    plan_.block = std::max(fitting, kShortestBlock) / kLine * kLine;
    plan_.block = std::max<std::uint32_t>(plan_.block / unit, 1) * unit;
    std::size_t offset = 0;
    for (const Memory& m : memory_) {
      for (const Place place : m.places) plan_.slots.push_back({place, static_cast<std::uint32_t>(offset)});
      const std::size_t size = m.whole ? m.size * plan_.block : m.size;
      offset += RoundUp(size, kLine);
    }
    plan_.arena = offset;
  }

  const Program& program_;
  const PlanKey& key_;
  const Evaluator& evaluator_;
  Plan plan_{};
  std::vector<std::uint32_t> last_use_;
  std::vector<Rate> rate_;
  std::vector<Place> place_;   // by id: where its value lies
  std::vector<Place> filled_;  // by id: an array of copies
  std::vector<std::uint32_t> slot_;
  std::vector<std::uint32_t> free_;
  std::vector<Memory> memory_;
};

}  // namespace

bool PlanKey::operator==(const PlanKey& other) const {
  return std::equal(lie, lie + kMaxInputs, other.lie) && written == other.written && period == other.period &&
         finds_zeros == other.finds_zeros;
}

Plan MakePlan(const Program& program, const PlanKey& key, const Evaluator& evaluator) {
  return Planner(program, key, evaluator).Make();
}

}  // namespace onnxopt
