// Reads the index maps of a kernel from kernels.json.
#pragma once

#include <vector>

#include "program/programs/indexing.h"
#include "support/json_reader.h"

namespace onnxopt {

std::vector<Extent> ReadExtents(const JsonReader& list);

// What indexing.py writes; Indexing::Verify is the caller's to call. Throws Error naming the place.
Indexing ReadIndexing(const JsonReader& json);

}  // namespace onnxopt
