// Mutated files beside the library, each read and run in a process that ran nothing before:
//   mutants <folder> <pack> <folder of the stand-ins>
// The folder holds this program and gets the files of the mutant at hand. pack: the original, then the mutants, each as
//   u32 number of files, then for each of them u32 length, name, u32 length, content
// The original has all files, a mutant those that differ from it. Prints a line a mutant: a verdict, and what it says
// of itself. Verdicts: "refused" (a file is an error when it is read), "failed" (a status when a kernel is made or
// runs), "same" and "different" (outputs), "inlined" (a kernel is not there), "unclear" (an error that does not name
// the file), "stopped" (a sanitizer, a signal or 20 s). MUTANTS_OVERFLOW=1 has every mutant read behind a tensor.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "exercise.h"
#include "registry/kinds.h"

namespace onnxopt::exercise {
namespace {

using Files = std::map<std::string, std::string>;

constexpr unsigned kSeconds = 20;

enum Verdict : int { kRefused = 10, kFailed, kSame, kDifferent, kInlined, kUnclear, kAllRefused };
constexpr const char* kVerdicts[] = {"refused", "failed", "same", "different", "inlined", "unclear"};

std::uint32_t ReadNumber(std::istream& stream) {
  std::uint32_t number = 0;
  stream.read(reinterpret_cast<char*>(&number), sizeof(number));
  return number;
}

std::string ReadText(std::istream& stream) {
  std::string text(ReadNumber(stream), '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

bool ReadFiles(std::istream& stream, Files* files) {
  files->clear();
  const std::uint32_t count = ReadNumber(stream);
  for (std::uint32_t k = 0; k < count && stream; ++k) {
    const std::string name = ReadText(stream);
    (*files)[name] = ReadText(stream);
  }
  return static_cast<bool>(stream);
}

void Write(const std::string& folder, const Files& files) {
  for (const auto& [name, text] : files) std::ofstream(folder + "/" + name, std::ios::binary) << text;
}

// What the original says, by case.
struct Expected {
  std::vector<Case> cases;
  std::vector<Result> results;
  std::vector<std::vector<Dtype>> inputs;
  std::vector<std::vector<Dtype>> outputs;
};

const Kernel* Find(const KernelFile& file, const std::string& name) {
  for (const Kernel& kernel : file.kernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

Verdict Say(Verdict verdict, const std::string& what) {
  std::printf("%s\n", what.c_str());
  return verdict;
}

Verdict RunCase(const KernelFile& file, const Expected& expected, std::size_t k) {
  const Case& call = expected.cases[k];
  const Kernel* const kernel = Find(file, call.kernel);
  if (kernel == nullptr) return Say(kInlined, call.kernel);
  // ONNX Runtime finds no kernel for the model's dtypes.
  if (kernel->inputs != expected.inputs[k] || kernel->outputs != expected.outputs[k]) return Say(kFailed, "dtypes");
  const Result result = RunOnCpu(*kernel, call, expected.inputs[k]);
  if (!result.error.empty()) return Say(kFailed, result.error);
  if (!Same(result, expected.results[k])) return Say(kDifferent, call.kernel);
  const std::string error = RunOnGpu(file, call);
  return error.empty() ? kSame : Say(kFailed, error);
}

Verdict Examine(const std::string& path, const Expected& expected) {
  std::optional<KernelFile> file;
  try {
    file = ReadKernelFile(path, FindKind);
  } catch (const Error& e) {
    const std::string text = e.what();
    return Say(text.find("kernels.") == std::string::npos ? kUnclear : kRefused, text);
  }
  Verdict worst = kSame;
  for (std::size_t k = 0; k < expected.cases.size(); ++k) {
    const Verdict verdict = RunCase(*file, expected, k);
    if (verdict == kDifferent) return verdict;
    if (verdict != kSame) worst = verdict;
  }
  return worst;
}

Expected RunOriginal(const std::string& path, const std::string& text) {
  Expected expected;
  const std::optional<KernelFile> file = ReadKernelFile(path, FindKind);
  for (const Case& call : ReadCases(nlohmann::json::parse(text))) {
    const Kernel* const kernel = Find(*file, call.kernel);
    if (kernel == nullptr) throw Error("the original has no kernel " + call.kernel);
    expected.inputs.push_back(kernel->inputs);
    expected.outputs.push_back(kernel->outputs);
    expected.results.push_back(RunOnCpu(*kernel, call, kernel->inputs));
    const std::string& error = expected.results.back().error;
    if (!error.empty()) throw Error("the original fails: " + error);
    expected.cases.push_back(call);
  }
  if (expected.cases.empty()) throw Error("the original has no cases");
  return expected;
}

// The first line of a sanitizer's report that says what happened.
std::string Report(const std::string& path) {
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    for (const char* sign : {"runtime error", "SUMMARY", "terminate called"}) {
      if (line.find(sign) != std::string::npos) return line;
    }
  }
  return "";
}

std::string FirstLine(const std::string& path) {
  std::ifstream stream(path);
  std::string line;
  std::getline(stream, line);
  return line;
}

// A fault on purpose, to show that it would be seen.
void ReadBehind() {
  const stand_in::Memory memory(1);
  const volatile unsigned char* const data = memory.data();
  std::printf("%d\n", data[1]);
}

void Restore(const std::string& folder, const Files& original, const Files& mutant) {
  for (const auto& [name, text] : mutant) Write(folder, {{name, original.at(name)}});
}

// In a process of its own: examines mutants from `first` on, up to one that is more than refused. Refused ones ran
// nothing, so that the next one finds the process as it was; what they say goes to the file of that name.
[[noreturn]] void Work(const std::string& folder, const std::vector<Files>& mutants, std::size_t first,
                       const Expected& expected) {
  const std::string out = folder + "/out";
  if (std::freopen((folder + "/err").c_str(), "w", stderr) == nullptr) _exit(1);
  for (std::size_t k = first; k < mutants.size(); ++k) {
    if (std::freopen(out.c_str(), "w", stdout) == nullptr) _exit(1);
    alarm(kSeconds);
    Write(folder, mutants[k]);
    if (std::getenv("MUTANTS_OVERFLOW") != nullptr) ReadBehind();
    const Verdict verdict = Examine(folder + "/kernels.json", expected);
    std::fflush(stdout);
    if (verdict != kRefused) _exit(verdict);
    std::ofstream(folder + "/refused", std::ios::app) << FirstLine(out) << '\n';
    Restore(folder, mutants[0], mutants[k]);
  }
  _exit(kAllRefused);
}

// mutants[0] is the original.
void Judge(const std::string& folder, const std::vector<Files>& mutants, const Expected& expected) {
  for (std::size_t at = 1; at < mutants.size();) {
    std::ofstream(folder + "/refused").close();
    const pid_t child = fork();
    if (child == 0) Work(folder, mutants, at, expected);
    int status = 0;
    waitpid(child, &status, 0);
    std::ifstream refused(folder + "/refused");
    for (std::string line; std::getline(refused, line); ++at) std::printf("refused\t%s\n", line.c_str());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (code == kAllRefused) return;
    if (code > kRefused && code <= kUnclear) {
      std::printf("%s\t%s\n", kVerdicts[code - kRefused], FirstLine(folder + "/out").c_str());
    } else {
      std::printf("stopped\t%d %s\n", code, Report(folder + "/err").c_str());
    }
    std::fflush(stdout);
    Restore(folder, mutants[0], mutants[at++]);
  }
}

}  // namespace
}  // namespace onnxopt::exercise

int main(int count, char** arguments) {
  using namespace onnxopt::exercise;
  if (count != 4) return 2;
  const std::string folder = arguments[1];
  Prepare(arguments[3]);
  std::ifstream stream(arguments[2], std::ios::binary);
  std::vector<Files> mutants;
  for (Files files; stream.peek() != EOF && ReadFiles(stream, &files);) mutants.push_back(files);
  if (mutants.empty()) return 2;
  Write(folder, mutants[0]);
  try {
    // The measured files are read once a process: none of the calls here may run on the GPU.
    const Expected expected = RunOriginal(folder + "/kernels.json", mutants[0]["kernels.json"]);
    Judge(folder, mutants, expected);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 3;
  }
  return 0;
}
