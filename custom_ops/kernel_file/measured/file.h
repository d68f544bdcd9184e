// Choices made by measurement, kept as data: a JSON file beside the library, and one that an environment variable
// names, which is read as well and written anew with every choice that is added. Both carry a digest of themselves
// (support/sealed_json.h):
//
//   {"sha256": "<hex>",
//    "entries": [...],
//    "schema": 2}
//
// Schema 1 was the same without the digest, and is not read any more: such a file may be damaged.
#pragma once

#include <functional>
#include <string>

#include "support/json_reader.h"

namespace onnxopt {

using ReadEntry = std::function<void(const JsonReader&)>;

// Hands every entry of a file's text to `read`. Throws Error, which names `path`, where the file is damaged.
void ReadMeasured(const std::string& text, const std::string& path, const ReadEntry& read);

// The text of a file with these entries.
std::string SealedMeasured(const nlohmann::json& entries);

class MeasuredFile {
 public:
  // Hands every entry of both files to `read`. Throws Error, which says which file, if one is damaged.
  MeasuredFile(const char* name, const char* variable, const ReadEntry& read);

  // Whether the variable is set: what has no entry is to be measured.
  bool tunes() const { return !path_.empty(); }

  // In one step: a reader finds the old file or the new one. Throws Error where it cannot be written.
  void Write(const nlohmann::json& entries) const;

  // A number of microseconds.
  static double Microseconds(const JsonReader& json);

 private:
  std::string path_;  // of the file that is written, or empty
};

}  // namespace onnxopt
