// Scan kernels in kernels.json.
#pragma once

#include "json_reader.h"
#include "kernel_file.h"

namespace onnxopt {

// The fields of a scan, which lie in `json` itself; verified. rows: becomes the grid that it runs over.
Scan ReadScan(const JsonReader& json, RowProgram* rows);

}  // namespace onnxopt
