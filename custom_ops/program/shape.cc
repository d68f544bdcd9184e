#include "program/shape.h"

#include <algorithm>

#include "support/error.h"

namespace onnxopt {

Shape ShapeOf(std::initializer_list<std::int64_t> dims) {
  Shape shape;
  shape.rank = dims.size();
  std::copy(dims.begin(), dims.end(), shape.dims);
  return shape;
}

std::int64_t Elements(const std::int64_t* dims, std::size_t count) {
  if (std::find(dims, dims + count, 0) != dims + count) return 0;
  std::int64_t product = 1;
  for (std::size_t k = 0; k < count; ++k) {
    if (__builtin_mul_overflow(product, dims[k], &product)) throw Error("a tensor has more than 2^63 elements");
  }
  return product;
}

std::uint64_t Shape::count() const { return static_cast<std::uint64_t>(Elements(dims, rank)); }

bool Shape::operator==(const Shape& other) const {
  return rank == other.rank && std::equal(dims, dims + rank, other.dims);
}

std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (std::size_t k = 0; k < shape.rank; ++k) {
    if (k > 0) text += ", ";
    text += std::to_string(shape.dims[k]);
  }
  return text + "]";
}

void PadRank(std::size_t rank, Shape* shape) {
  if (shape->rank >= rank) return;
  const std::size_t added = rank - shape->rank;
  std::copy_backward(shape->dims, shape->dims + shape->rank, shape->dims + rank);
  std::fill_n(shape->dims, added, 1);
  shape->rank = rank;
}

bool BroadcastInto(const Shape& other, Shape* shape) {
  PadRank(other.rank, shape);
  std::int64_t* dims = shape->dims + (shape->rank - other.rank);
  for (std::size_t k = 0; k < other.rank; ++k) {
    if (other.dims[k] == dims[k] || other.dims[k] == 1) continue;
    if (dims[k] != 1) return false;
    dims[k] = other.dims[k];
  }
  return true;
}

bool Collapse(const Shape& input, const Shape& domain, Access* access) {
  access->runs = 0;
  access->guards = 0;
  if (input.rank > domain.rank) {
    for (std::size_t k = 0; k < input.rank - domain.rank; ++k) {
      if (input.dims[k] != 1) return false;
    }
  }
  std::uint64_t div = 1;     // product of the domain's dims passed so far
  std::uint64_t stride = 1;  // product of the input's dims passed so far
  bool open = false;         // the last run goes on
  const std::size_t rank = std::min(input.rank, domain.rank);
  for (std::size_t k = 1; k <= rank; ++k) {
    const auto have = static_cast<std::uint64_t>(input.dims[input.rank - k]);
    const auto want = static_cast<std::uint64_t>(domain.dims[domain.rank - k]);
    if (have != want && have != 1) return false;
    if (want == 1) continue;
    if (have == 1) {
      open = false;
    } else if (open) {
      access->run[access->runs - 1].mod *= have;
    } else {
      access->run[access->runs++] = {div, have, static_cast<std::int64_t>(stride)};
      open = true;
    }
    div *= want;
    stride *= have;
  }
  return true;
}

}  // namespace onnxopt
