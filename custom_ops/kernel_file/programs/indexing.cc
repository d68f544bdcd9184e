#include "kernel_file/programs/indexing.h"

#include <limits>

#include "kernel_file/fields.h"

namespace onnxopt {
namespace {

constexpr std::uint64_t kMaxId = std::numeric_limits<std::uint32_t>::max();

// A number, or [factor, symbol, ...].
Extent ReadExtent(const JsonReader& json) {
  const auto integer = [](const JsonReader& number) {
    if (!number.value().is_number_integer()) number.Fail("is not an integer");
    return number.value().get<std::int64_t>();
  };
  Extent extent;
  if (!json.value().is_array()) {
    extent.factor = integer(json);
    return extent;
  }
  bool first = true;
  json.Each([&](const JsonReader& part) {
    if (first) {
      extent.factor = integer(part);
    } else {
      extent.symbols.push_back(static_cast<std::uint32_t>(part.Number(0, kMaxId)));
    }
    first = false;
  });
  if (first) json.Fail("is empty");
  return extent;
}

std::vector<IndexTerm> ReadTerms(const JsonReader& json) {
  std::vector<IndexTerm> terms;
  json.Each([&](const JsonReader& row) {
    const std::vector<Extent> parts = ReadExtents(row);
    if (parts.size() != 3) row.Fail("is not [div, mod, stride]");
    terms.push_back({parts[0], parts[1], parts[2]});
  });
  return terms;
}

IndexLookup ReadLookup(const JsonReader& json) {
  const std::vector<Extent> parts = ReadExtents(json);
  const bool valid = parts.size() == 3 && parts[0].symbols.empty() && parts[0].factor >= 0 &&
                     static_cast<std::uint64_t>(parts[0].factor) <= kMaxId;
  if (!valid) json.Fail("is not [value, size, stride]");
  return {static_cast<std::uint32_t>(parts[0].factor), parts[1], parts[2]};
}

std::int64_t ReadInteger(const JsonReader& json) {
  const Extent extent = ReadExtent(json);
  if (!extent.symbols.empty()) json.Fail("is not an integer");
  return extent.factor;
}

}  // namespace

std::vector<Extent> ReadExtents(const JsonReader& json) {
  std::vector<Extent> extents;
  json.Each([&](const JsonReader& e) { extents.push_back(ReadExtent(e)); });
  return extents;
}

Indexing ReadIndexing(const JsonReader& json) {
  Indexing index;
  json["symbols"].Each([&](const JsonReader& row) {
    const std::vector<std::uint32_t> pair = ReadIds(row);
    if (pair.size() != 2) row.Fail("is not [input, axis]");
    index.symbols.push_back({pair[0], pair[1]});
  });
  json["dims"].Each([&](const JsonReader& row) { index.dims.push_back(ReadExtents(row)); });
  json["shapes"].Each([&](const JsonReader& row) { index.shapes.push_back(ReadExtents(row)); });
  json["accesses"].Each([&](const JsonReader& row) {
    const auto input = static_cast<std::uint32_t>(row["input"].Number(0, kMaxId));
    index.accesses.push_back({input, ReadExtents(row["offset"]), ReadTerms(row["terms"]), ReadIds(row["guards"]), {}});
    if (row.Has("lookup")) index.accesses.back().lookup = ReadLookup(row["lookup"]);
  });
  json["conditions"].Each([&](const JsonReader& row) {
    index.conditions.push_back(
        {ReadInteger(row["offset"]), ReadTerms(row["terms"]), ReadExtents(row["low"]), ReadExtents(row["high"])});
  });
  return index;
}

}  // namespace onnxopt
