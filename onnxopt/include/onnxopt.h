// Opens artifacts of onnxopt in C++: one file, C++17, and nothing but ONNX Runtime's own headers (1.21 or later).
//
//   #include <onnxopt.h>
//   Ort::Env env;
//   onnxopt::Artifact artifact = onnxopt::Open(env, "path/to/artifact");
//   artifact.session.Run(...);
//
// Open registers the artifact's library and applies the session and provider options that the artifact has for this
// machine: those that `onnxopt tune` wrote for its GPU, else those for any GPU, else those for the CPU. It checks no
// hashes: `onnxopt verify-signature` and `onnxopt.load` do.
//
// Link: -lonnxruntime, and -ldl where the C library is older than glibc 2.34.
#pragma once

#include <dlfcn.h>
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace onnxopt {

// Whatever keeps an artifact from being opened, other than an Ort::Exception: one line, with the file's name.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a caller may ask for. configuration: a file of providers/ by name ("cpu", "h200"), empty: this machine's.
// cuda_graph: provider options for CUDA graphs, for runs with an Ort::IoBinding and a run option gpu_graph_id for each
// set of buffers, -1 for runs without a graph. library: without it, ONNX Runtime runs the original operators. adjust:
// is called with the session options when all others are set.
struct Choice {
  std::string configuration;
  bool cuda_graph = false;
  bool library = true;
  std::function<void(Ort::SessionOptions&)> adjust;
};

// A file of providers/. provider: ONNX Runtime's name of it. reason: why it was chosen. Option names and values are
// those of the file; session_options are named as in ONNX Runtime's Python API.
struct Configuration {
  std::string name;
  std::string reason;
  std::string provider;
  std::map<std::string, std::string> provider_options;
  std::map<std::string, std::string> session_options;
  std::map<std::string, std::string> session_config;
  std::map<std::string, std::string> cuda_graph_options;  // to be added for CUDA graphs
  bool cuda_graph_qualifies = false;
  bool takes_library = true;
  std::string tuned_device;  // empty: made by rule
};

// An open artifact.
struct Artifact {
  Configuration configuration;
  Ort::Session session;
};

namespace internal {

// A value of a JSON document; numbers and literals keep their spelling.
struct Json {
  enum class Kind { kNull, kBoolean, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  std::string text;  // of a boolean, a number or a string
  std::vector<Json> elements;
  std::map<std::string, Json> members;

  // A member; null where there is none.
  const Json& operator[](const std::string& name) const {
    static const Json null;
    const auto found = members.find(name);
    return found == members.end() ? null : found->second;
  }
};

// Reads one JSON document (RFC 8259). Throws Error with the offset of what is wrong.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  Json Document() {
    Json value = Value(0);
    SkipSpace();
    if (at_ != text_.size()) Fail("text behind the document");
    return value;
  }

 private:
  static constexpr int kDeepest = 100;

  [[noreturn]] void Fail(const char* what) const { throw Error(std::string(what) + " at byte " + std::to_string(at_)); }

  void SkipSpace() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool Take(char expected) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != expected) return false;
    ++at_;
    return true;
  }

  void Expect(char expected) {
    if (!Take(expected)) Fail((std::string("expected ") + expected).c_str());
  }

  Json Value(int depth) {
    if (depth > kDeepest) Fail("nested too deeply");
    SkipSpace();
    Json value;
    if (Take('{')) {
      value.kind = Json::Kind::kObject;
      if (Take('}')) return value;
      do {
        SkipSpace();
        std::string name = String();
        Expect(':');
        value.members.insert_or_assign(std::move(name), Value(depth + 1));
      } while (Take(','));
      Expect('}');
    } else if (Take('[')) {
      value.kind = Json::Kind::kArray;
      if (Take(']')) return value;
      do value.elements.push_back(Value(depth + 1));
      while (Take(','));
      Expect(']');
    } else if (at_ < text_.size() && text_[at_] == '"') {
      value.kind = Json::Kind::kString;
      value.text = String();
    } else {
      Literal(value);
    }
    return value;
  }

  void Literal(Json& value) {
    const size_t start = at_;
    while (at_ < text_.size() && std::string_view(" \t\r\n,]}").find(text_[at_]) == std::string_view::npos) ++at_;
    value.text = text_.substr(start, at_ - start);
    if (value.text == "true" || value.text == "false") {
      value.kind = Json::Kind::kBoolean;
    } else if (value.text != "null") {
      value.kind = Json::Kind::kNumber;
      char* end = nullptr;
      std::strtod(value.text.c_str(), &end);
      const bool starts =
          !value.text.empty() && (value.text[0] == '-' || (value.text[0] >= '0' && value.text[0] <= '9'));
      if (!starts || *end != '\0') {
        at_ = start;
        Fail("no JSON value");
      }
    }
  }

  std::string String() {
    if (!Take('"')) Fail("expected a string");
    std::string result;
    while (true) {
      if (at_ == text_.size()) Fail("a string without end");
      const char c = text_[at_++];
      if (c == '"') return result;
      if (c == '\\') {
        Escape(result);
      } else {
        result += c;
      }
    }
  }

  void Escape(std::string& result) {
    static constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (at_ == text_.size()) Fail("a string without end");
    const char c = text_[at_++];
    const size_t known = kNames.find(c);
    if (known != std::string_view::npos) {
      result += kMeanings[known];
      return;
    }
    if (c != 'u') Fail("an unknown escape");
    uint32_t point = Hex();
    if (point >= 0xD800 && point < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      point = 0x10000 + ((point - 0xD800) << 10) + (Hex() - 0xDC00);
    }
    AppendUtf8(result, point);
  }

  uint32_t Hex() {
    uint32_t value = 0;
    for (int digit = 0; digit < 4; ++digit, ++at_) {
      static constexpr std::string_view kDigits = "0123456789abcdef";
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      const size_t found = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
      if (found == std::string_view::npos) Fail("expected four hexadecimal digits");
      value = value * 16 + static_cast<uint32_t>(found);
    }
    return value;
  }

  static void AppendUtf8(std::string& result, uint32_t point) {
    if (point < 0x80) {
      result += static_cast<char>(point);
      return;
    }
    const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    static constexpr unsigned char kFirst[] = {0, 0xC0, 0xE0, 0xF0};
    result += static_cast<char>(kFirst[more] | (point >> (6 * more)));
    for (int left = more - 1; left >= 0; --left) result += static_cast<char>(0x80 | ((point >> (6 * left)) & 0x3F));
  }

  std::string_view text_;
  size_t at_ = 0;
};

inline std::map<std::string, std::string> Strings(const Json& object) {
  std::map<std::string, std::string> strings;
  for (const auto& [name, value] : object.members) strings[name] = value.text;
  return strings;
}

inline Configuration Read(const std::filesystem::path& path, std::string reason) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(path.string() + ": cannot be read");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Json document;
  try {
    document = JsonReader(text).Document();
  } catch (const Error& error) {
    throw Error(path.string() + ": is not JSON: " + error.what());
  }
  Configuration read;
  read.name = path.stem().string();
  read.reason = std::move(reason);
  read.provider = document["provider"].text;
  read.provider_options = Strings(document["provider_options"]);
  read.session_options = Strings(document["session_options"]);
  read.session_config = Strings(document["session_config"]);
  read.cuda_graph_options = Strings(document["cuda_graph"]["provider_options"]);
  read.cuda_graph_qualifies = document["cuda_graph"]["qualifies"].text == "true";
  read.takes_library = document["library"].text != "false";
  read.tuned_device = document["tuned"]["device"].text;
  if (read.provider != "CUDAExecutionProvider" && read.provider != "CPUExecutionProvider")
    throw Error(path.string() + ": is for the provider '" + read.provider +
                "', and this header knows CUDA and the CPU");
  return read;
}

// The first GPU as the driver calls it, empty where there is none. No CUDA context is created.
inline std::string GpuName() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return "";
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto name_of = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  int device = 0;
  char name[256] = "";
  const bool found = init != nullptr && get != nullptr && name_of != nullptr && init(0) == 0 && get(&device, 0) == 0 &&
                     name_of(name, sizeof(name), device) == 0;
  return found ? name : "";  // the driver stays loaded, as ONNX Runtime loads it too
}

inline GraphOptimizationLevel Level(const std::string& value) {
  if (value == "all") return ORT_ENABLE_ALL;
  if (value == "extended") return ORT_ENABLE_EXTENDED;
  if (value == "basic") return ORT_ENABLE_BASIC;
  throw Error("graph_optimization_level is '" + value + "', expected all, extended or basic");
}

inline void Set(Ort::SessionOptions& options, const std::string& name, const std::string& value) {
  const bool on = value == "true";
  if (name == "graph_optimization_level") {
    options.SetGraphOptimizationLevel(Level(value));
  } else if (name == "execution_mode") {
    options.SetExecutionMode(value == "parallel" ? ORT_PARALLEL : ORT_SEQUENTIAL);
  } else if (name == "intra_op_num_threads") {
    options.SetIntraOpNumThreads(std::stoi(value));
  } else if (name == "inter_op_num_threads") {
    options.SetInterOpNumThreads(std::stoi(value));
  } else if (name == "enable_cpu_mem_arena") {
    on ? options.EnableCpuMemArena() : options.DisableCpuMemArena();
  } else if (name == "enable_mem_pattern") {
    on ? options.EnableMemPattern() : options.DisableMemPattern();
  } else {
    throw Error("session option " + name + " is not known to this header");
  }
}

inline void AppendCuda(Ort::SessionOptions& options, const std::map<std::string, std::string>& values) {
  std::vector<const char*> keys, texts;
  for (const auto& [name, value] : values) {
    keys.push_back(name.c_str());
    texts.push_back(value.c_str());
  }
  OrtCUDAProviderOptionsV2* cuda = nullptr;
  Ort::ThrowOnError(Ort::GetApi().CreateCUDAProviderOptions(&cuda));
  const auto release = Ort::GetApi().ReleaseCUDAProviderOptions;
  const std::unique_ptr<OrtCUDAProviderOptionsV2, decltype(release)> owner(cuda, release);
  Ort::ThrowOnError(Ort::GetApi().UpdateCUDAProviderOptions(cuda, keys.data(), texts.data(), keys.size()));
  options.AppendExecutionProvider_CUDA_V2(*cuda);
}

}  // namespace internal

// The file of an artifact's providers/ that Open takes on this machine, or the one that `name` names.
inline Configuration ConfigurationFor(const std::filesystem::path& artifact, const std::string& name = "") {
  const std::filesystem::path folder = artifact / "providers";
  if (!name.empty()) return internal::Read(folder / (name + ".json"), "asked for");
  const std::vector<std::string> available = Ort::GetAvailableProviders();
  if (std::find(available.begin(), available.end(), "CUDAExecutionProvider") == available.end())
    return internal::Read(folder / "cpu.json", "this ONNX Runtime has no CUDA execution provider");
  const std::string device = internal::GpuName();
  if (device.empty()) return internal::Read(folder / "cpu.json", "the driver reports no CUDA device");
  if (!std::filesystem::is_directory(folder)) throw Error(folder.string() + ": is no folder");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json" || entry.path().stem().extension() == ".tensorrt") continue;
    Configuration tuned = internal::Read(entry.path(), "tuned on " + device);
    if (tuned.tuned_device == device) return tuned;
  }
  return internal::Read(folder / "cuda.json", "no file was tuned on " + device);
}

// Session options of a configuration, with its provider and the artifact's library. Throws Error or Ort::Exception.
inline Ort::SessionOptions OptionsFor(const std::filesystem::path& artifact, const Configuration& configuration,
                                      const Choice& choice = {}) {
  Ort::SessionOptions options;
  for (const auto& [name, value] : configuration.session_options) internal::Set(options, name, value);
  for (const auto& [name, value] : configuration.session_config) options.AddConfigEntry(name.c_str(), value.c_str());
  std::map<std::string, std::string> values = configuration.provider_options;
  if (choice.cuda_graph) {
    if (!configuration.cuda_graph_qualifies)
      throw Error(artifact.string() + ": " + configuration.name + ".json says that no CUDA graph is possible");
    for (const auto& [name, value] : configuration.cuda_graph_options) values[name] = value;
  }
  if (configuration.provider == "CUDAExecutionProvider") internal::AppendCuda(options, values);
  // Behind the configuration, whose entry onnxopt.disable it reads. There is no library where nothing was fused.
  const std::filesystem::path library = artifact / "lib" / "libonnxopt_ops.so";
  if (choice.library && configuration.takes_library && std::filesystem::exists(library))
    options.RegisterCustomOpsLibrary(std::filesystem::absolute(library).c_str());
  if (choice.adjust) choice.adjust(options);
  return options;
}

// Opens an artifact folder. Throws Error or Ort::Exception. Where this machine's file is for CUDA and CUDA does not
// start, the CPU's is taken, and the configuration's reason says so.
inline Artifact Open(const Ort::Env& env, const std::filesystem::path& artifact, const Choice& choice = {}) {
  const auto open = [&](Configuration configuration) {
    const Ort::SessionOptions options = OptionsFor(artifact, configuration, choice);
    Ort::Session session(env, (artifact / "model.onnx").c_str(), options);
    return Artifact{std::move(configuration), std::move(session)};
  };
  Configuration chosen = ConfigurationFor(artifact, choice.configuration);
  const bool may_fall_back =
      choice.configuration.empty() && !choice.cuda_graph && chosen.provider != "CPUExecutionProvider";
  if (!may_fall_back) return open(std::move(chosen));
  try {
    return open(chosen);
  } catch (const Ort::Exception& error) {
    const std::string reason = chosen.name + ".json (" + chosen.reason + ") fails: " + error.what();
    return open(internal::Read(artifact / "providers" / "cpu.json", reason));
  }
}

}  // namespace onnxopt
