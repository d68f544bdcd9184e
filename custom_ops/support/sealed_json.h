// JSON files that carry a digest of themselves. The first line is
//   {"sha256": "<hex>",
// with the SHA-256 of all bytes behind that line, so that any change of the file is seen before it is read.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace onnxopt {

// The document in a sealed file's text. Throws Error where the text is not valid JSON, its field "schema" is not
// `schema`, it has no digest, or it was changed.
nlohmann::json ReadSealedJson(const std::string& text, std::uint64_t schema);

// The text of a sealed file. document: an object with at least one field.
std::string SealedJson(const nlohmann::json& document);

// The same from all that stands behind the first line.
std::string SealedText(const std::string& body);

}  // namespace onnxopt
