// Scan kernels in kernels.json.
#pragma once

#include "program/scan.h"
#include "support/json_reader.h"

namespace onnxopt {

// The fields of a scan, which lie in `json` itself; verified.
Scan ReadScan(const JsonReader& json);

}  // namespace onnxopt
