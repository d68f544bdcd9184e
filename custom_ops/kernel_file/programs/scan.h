// Scan kernels in kernels.json.
#pragma once

#include "kernel_file/kernel.h"
#include "program/programs/scan.h"
#include "support/json_reader.h"

namespace onnxopt {

// The fields of a scan, which lie in `json` itself; verified.
Scan ReadScan(const JsonReader& json);

Variant ReadScanVariant(const JsonReader& json, const Scan& scan);

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Scan& scan, std::vector<Variant>* variants);

}  // namespace onnxopt
