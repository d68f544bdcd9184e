// Scan kernels in kernels.json.
#pragma once

#include "kernel_file/kernel_file.h"
#include "support/json_reader.h"

namespace onnxopt {

// The fields of a scan, which lie in `json` itself; verified. rows: becomes the grid that it runs over.
Scan ReadScan(const JsonReader& json, RowProgram* rows);

}  // namespace onnxopt
