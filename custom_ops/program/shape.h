// Shapes of a call: numpy broadcasting, and how an input's elements lie over a flattened domain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace onnxopt {

constexpr std::size_t kMaxRank = 16;

// Inputs of a kernel, and ways to read them. More would not fit its parameter block, and keeps every per-call array on
// the stack.
constexpr std::size_t kMaxInputs = 32;

// Left uninitialized by default, as calls keep arrays of them on the stack.
struct Shape {
  std::size_t rank;
  std::int64_t dims[kMaxRank];

  // Throws Error where there are more than 2^63 elements.
  std::uint64_t count() const;
  bool operator==(const Shape& other) const;
};

Shape ShapeOf(std::initializer_list<std::int64_t> dims);

// The product of dims; 0 where one of them is 0, however large the others are. Throws Error above 2^63.
std::int64_t Elements(const std::int64_t* dims, std::size_t count);

// As "[2, 3]".
std::string ToString(const Shape& shape);

// Broadcasts `other` into `shape` by numpy's rules. False where they do not broadcast; `shape` is then undefined.
bool BroadcastInto(const Shape& other, Shape* shape);

// Left-pads with 1s to at least `rank` dims.
void PadRank(std::size_t rank, Shape* shape);

// A maximal run of neighbouring dims in which an input is read in steps of `stride`, see cuda_kernels/device/abi.h.
struct Run {
  std::uint64_t div;
  std::uint64_t mod;
  std::int64_t stride;
};

// The element that an input contributes to domain element i lies at sum of ((i / div) mod mod) * stride over the runs,
// which are ordered from the innermost dim outwards. No run: one element for all. guards: bit k: condition k must hold,
// or nothing is read (indexing.h). terms: of an index map, all that kernels.json has, also those of one element, which
// are no runs; else none. stretch: of an index map, the elements of a run or cell of the first term, by what it was
// declared. size: of the dim that indices are looked up for, whose elements are `step` apart; step is 0 where none are.
struct Access {
  std::size_t runs = 0;
  Run run[kMaxRank / 2];
  std::uint32_t guards = 0;
  std::size_t terms = 0;
  Run term[kMaxRank / 2];
  std::uint64_t stretch = 0;
  std::int64_t size = 0;
  std::int64_t step = 0;

  std::int64_t Offset(std::uint64_t i) const {
    std::int64_t offset = 0;
    for (std::size_t k = 0; k < runs; ++k) {
      offset += static_cast<std::int64_t>(i / run[k].div % run[k].mod) * run[k].stride;
    }
    return offset;
  }
  // offset(i) == i over the whole domain.
  bool Flat(std::uint64_t count) const {
    return guards == 0 && step == 0 &&
           (count == 1 ? runs == 0 : runs == 1 && run[0].div == 1 && run[0].mod == count && run[0].stride == 1);
  }
};

// How `input` lies over `domain`. False where it does not broadcast into it. The domain must not be empty.
bool Collapse(const Shape& input, const Shape& domain, Access* access);

}  // namespace onnxopt
