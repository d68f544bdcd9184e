// What the library's readers say of meanings, driven by tests/program/test_generated.py: read_meanings <file with a
// list of kernels' rows, with entry points or without of kernels.json> prints a line for each, empty where it is
// accepted, else the error.
#include <cstdio>
#include <fstream>

#include "kernel_file/fields.h"
#include "registry/kinds.h"

int main(int, char** arguments) {
  std::ifstream file(arguments[1]);
  const nlohmann::json rows = nlohmann::json::parse(file);
  for (const nlohmann::json& row : rows) {
    try {
      const onnxopt::JsonReader json(row, "");
      onnxopt::Kernel kernel;
      kernel.inputs = onnxopt::ReadDtypes(json["inputs"]);
      kernel.outputs = onnxopt::ReadDtypes(json["outputs"]);
      const onnxopt::Kind* const kind = onnxopt::FindKind(json["kind"].Text());
      kind->ReadMeaning(json, &kernel);
      if (json.Has("variants")) json["variants"].Each([&](const auto& v) { kind->ReadVariant(v, kernel); });
      std::puts("");
    } catch (const onnxopt::Error& e) {
      std::puts(e.what());
    }
  }
  return 0;
}
