// Copies the elements that an input contributes to a block, where they do not lie side by side.
#pragma once

#include <cstddef>

#include "program/shape.h"

namespace onnxopt {

// Writes the `n` elements of `size` bytes that belong to domain elements first .. first + n - 1.
void Gather(void* out, const void* data, const Access& access, std::size_t size, std::uint64_t first, std::size_t n);

}  // namespace onnxopt
