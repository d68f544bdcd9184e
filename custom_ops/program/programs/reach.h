// Where a kernel with index operations reads: checked for every call, as kernels.json says it in numbers.
#pragma once

#include "program/programs/indexing.h"

namespace onnxopt {

// Throws Error unless the numbers of an access and its offset, or of a condition, are such that no sum or product of
// them overflows over a domain of `count` > 0 elements.
void CheckNumbers(const Access& access, std::int64_t offset, std::uint64_t count);
void CheckNumbers(const Condition& condition, std::uint64_t count);

// Whether all that an access reads over a domain of `count` > 0 elements lies in a tensor of `elements`: exact, but for
// an access without guards that reads in overlapping runs of dims, of which there is none (false is then possible).
// conditions: of the kernel; those that are guards of the access hold wherever it reads. All were checked as above.
// What an access looks up may be any element of the dim that is indexed.
bool ReadsInside(const Access& access, std::int64_t offset, const Condition* conditions, std::uint64_t count,
                 std::uint64_t elements);

}  // namespace onnxopt
