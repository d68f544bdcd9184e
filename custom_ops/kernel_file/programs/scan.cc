#include "kernel_file/programs/scan.h"

#include "kernel_file/fields.h"
#include "kernel_file/kind_reader.h"
#include "kernel_file/programs/pointwise.h"
#include "kernel_file/programs/rowwise.h"

namespace onnxopt {
namespace {

bool IsSummed(Dtype dtype) {
  return dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64 || dtype == Dtype::kInt32 || dtype == Dtype::kInt64 ||
         dtype == Dtype::kUint32 || dtype == Dtype::kUint64;
}

void Check(const Scan& scan, const JsonReader& json) {
  const RowProgram& rows = scan.rows;
  std::vector<Dtype> read = rows.inputs;
  if (read.empty() || read.size() >= kMaxInputs) json["inputs"].Fail("are none, or too many");
  if (rows.operands.size() != read.size()) json["rows"].Fail("are not as many as inputs");
  if (scan.element.inputs != read || scan.element.outputs.size() != 1 || !IsSummed(scan.element.outputs[0])) {
    json["element"].Fail("is not one value of the inputs that can be summed up");
  }
  read.push_back(scan.total());
  if (rows.outputs.empty() || rows.outputs.size() > kMaxOutputs) json["outputs"].Fail("are none, or too many");
  if (scan.output.inputs != read || scan.output.outputs != rows.outputs) {
    json["output"].Fail("is not what the outputs store, of the inputs and the total");
  }
  if (scan.element.index || scan.output.index) json.Fail("has index operations, which no scan has");
}

}  // namespace

Scan ReadScan(const JsonReader& json) {
  Scan scan;
  RowProgram& rows = scan.rows;
  rows.inputs = ReadDtypes(json["inputs"]);
  rows.outputs = ReadDtypes(json["outputs"]);
  rows.views = {View{json["rank"].Number(1, kMaxRank), {}}};
  rows.first = json["axis"].Number(0, rows.views[0].rank - 1);
  rows.last = rows.first + 1;
  json["rows"].Each([&](const JsonReader& row) { rows.operands.push_back({0, 0, row.Flag()}); });
  rows.results.assign(rows.outputs.size(), Result{Form::kElement, 0});
  scan.exclusive = json["exclusive"].Flag();
  scan.reverse = json["reverse"].Flag();
  scan.element = ReadProgram(json["element"]);
  scan.output = ReadProgram(json["output"]);
  Check(scan, json);
  return scan;
}

Variant ReadScanVariant(const JsonReader& json, const Scan& scan) {
  Variant variant = ReadRowVariant(json, scan.rows, kScanLaunches);
  if (variant.unroll == 0) json["unroll"].Fail("is 0, and scans go along their rows chunk by chunk");
  return variant;
}

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Scan& /*scan*/, std::vector<Variant>* variants) {
  CheckPasses(*variants, kScanLaunches, json);
  CheckNotEmpty(json, has_fatbin, *variants);
}

}  // namespace onnxopt
