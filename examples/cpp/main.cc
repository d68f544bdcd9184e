// Runs an artifact from C++, as any program on ONNX Runtime can: `run ARTIFACT [INPUT=1x3x48x320 ...]`.
//
// The program opens the artifact twice with onnxopt.h, without and with the artifact's library. It feeds both sessions
// the same inputs (symbolic dims are 1, unless a size is given), and prints the difference of the outputs and the
// times.
#include <onnxopt.h>
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <map>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kRuns = 20;

onnxopt::Artifact Open(const Ort::Env& env, const std::string& artifact, bool with_library) {
  onnxopt::Choice choice;
  choice.library = with_library;
  choice.adjust = [](Ort::SessionOptions& options) {  // or one session's idle threads slow down the other
    options.AddConfigEntry("session.force_spinning_stop", "1");
  };
  return onnxopt::Open(env, artifact, choice);
}

size_t ElementCount(const Ort::Value& tensor) { return tensor.GetTensorTypeAndShapeInfo().GetElementCount(); }

template <typename T>
void FillInteger(Ort::Value& tensor) {
  T* data = tensor.GetTensorMutableData<T>();
  std::fill(data, data + ElementCount(tensor), T{1});  // valid as token id, as mask and as type
}

template <typename T>
void FillFloat(Ort::Value& tensor) {
  T* data = tensor.GetTensorMutableData<T>();
  const size_t count = ElementCount(tensor);
  for (size_t i = 0; i < count; ++i) {
    data[i] = T(static_cast<float>(i * 37 % 101) / 101.0f - 0.5f);
  }
}

void Fill(Ort::Value& tensor, const std::string& name) {
  switch (tensor.GetTensorTypeAndShapeInfo().GetElementType()) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return FillFloat<float>(tensor);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return FillFloat<double>(tensor);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return FillFloat<Ort::Float16_t>(tensor);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return FillFloat<Ort::BFloat16_t>(tensor);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return FillInteger<int64_t>(tensor);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return FillInteger<int32_t>(tensor);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return FillInteger<uint8_t>(tensor);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
      return FillInteger<bool>(tensor);
    default:
      throw std::runtime_error("input " + name + " has an element type that this example does not fill");
  }
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

// "x=1x3x48x320" becomes {"x": {1, 3, 48, 320}}.
Shapes ParseShapes(const std::vector<std::string>& arguments) {
  Shapes shapes;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.rfind('=');
    if (equals == std::string::npos)
      throw std::invalid_argument(argument + ": expected INPUT=DIMS, as in x=1x3x48x320");
    std::vector<int64_t>& shape = shapes[argument.substr(0, equals)];
    std::istringstream dims(argument.substr(equals + 1));
    for (std::string dim; std::getline(dims, dim, 'x');) shape.push_back(std::stoll(dim));
  }
  return shapes;
}

std::vector<Ort::Value> MakeInputs(const Ort::Session& session, const Shapes& shapes) {
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<Ort::Value> inputs;
  for (size_t i = 0; i < session.GetInputCount(); ++i) {
    const std::string name = session.GetInputNameAllocated(i, allocator).get();
    const Ort::TypeInfo type = session.GetInputTypeInfo(i);
    const auto tensor_type = type.GetTensorTypeAndShapeInfo();
    const auto told = shapes.find(name);
    std::vector<int64_t> shape = told == shapes.end() ? tensor_type.GetShape() : told->second;
    std::replace_if(shape.begin(), shape.end(), [](int64_t d) { return d < 0; }, 1);
    inputs.push_back(Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), tensor_type.GetElementType()));
    Fill(inputs.back(), name);
  }
  return inputs;
}

std::vector<std::string> Names(const Ort::Session& session, bool inputs) {
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<std::string> names;
  const size_t count = inputs ? session.GetInputCount() : session.GetOutputCount();
  for (size_t i = 0; i < count; ++i) {
    names.emplace_back(
        (inputs ? session.GetInputNameAllocated(i, allocator) : session.GetOutputNameAllocated(i, allocator)).get());
  }
  return names;
}

// One session, and the times of its runs.
struct Runner {
  Ort::Session session;
  std::vector<std::string> input_names = Names(session, true);
  std::vector<std::string> output_names = Names(session, false);
  std::vector<double> milliseconds = {};

  std::vector<Ort::Value> Run(const std::vector<Ort::Value>& inputs) {
    std::vector<const char*> in, out;
    for (const std::string& name : input_names) in.push_back(name.c_str());
    for (const std::string& name : output_names) out.push_back(name.c_str());
    const auto start = std::chrono::steady_clock::now();
    auto outputs = session.Run(Ort::RunOptions{}, in.data(), inputs.data(), inputs.size(), out.data(), out.size());
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    milliseconds.push_back(elapsed.count());
    return outputs;
  }

  double Median() {
    const auto middle = milliseconds.begin() + milliseconds.size() / 2;
    std::nth_element(milliseconds.begin(), middle, milliseconds.end());
    return *middle;
  }
};

template <typename T>
double MaxDifference(const Ort::Value& a, const Ort::Value& b) {
  const T* left = a.GetTensorData<T>();
  const T* right = b.GetTensorData<T>();
  double worst = 0;
  const size_t count = ElementCount(a);
  for (size_t i = 0; i < count; ++i) {
    const double x = static_cast<double>(static_cast<float>(left[i]));
    const double y = static_cast<double>(static_cast<float>(right[i]));
    if (std::isnan(x) && std::isnan(y)) continue;
    if (std::isnan(x) || std::isnan(y)) return std::nan("");
    if (x != y) worst = std::max(worst, std::fabs(x - y));
  }
  return worst;
}

// Largest absolute difference, NaN where only one of the two is NaN; -1 for element types that are not compared.
double MaxDifference(const Ort::Value& a, const Ort::Value& b) {
  switch (a.GetTensorTypeAndShapeInfo().GetElementType()) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return MaxDifference<float>(a, b);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return MaxDifference<double>(a, b);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return MaxDifference<Ort::Float16_t>(a, b);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return MaxDifference<Ort::BFloat16_t>(a, b);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return MaxDifference<int64_t>(a, b);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return MaxDifference<int32_t>(a, b);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
      return MaxDifference<bool>(a, b);
    default:
      return -1;
  }
}

std::string ShapeText(const Ort::Value& tensor) {
  const std::vector<int64_t> shape = tensor.GetTensorTypeAndShapeInfo().GetShape();
  return std::accumulate(shape.begin(), shape.end(), std::string(), [](const std::string& text, int64_t d) {
    return text + (text.empty() ? "" : "x") + std::to_string(d);
  });
}

void Compare(const std::string& name, const Ort::Value& with, const Ort::Value& without) {
  if (ShapeText(with) != ShapeText(without)) {
    throw std::runtime_error("output " + name + " has shape " + ShapeText(with) + " with the library, " +
                             ShapeText(without) + " without it");
  }
  std::printf("  %s [%s]  max difference %.3g\n", name.c_str(), ShapeText(with).c_str(), MaxDifference(with, without));
}

void RunArtifact(const std::string& artifact, const Shapes& shapes) {
  const Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "onnxopt-example");
  onnxopt::Artifact opened = Open(env, artifact, true);
  const onnxopt::Configuration configuration = opened.configuration;
  Runner plain{Open(env, artifact, false).session};
  Runner fused{std::move(opened.session)};
  const std::vector<Ort::Value> inputs = MakeInputs(plain.session, shapes);

  std::printf("ONNX Runtime %s from C++, providers/%s.json: %s\n", Ort::GetVersionString().c_str(),
              configuration.name.c_str(), configuration.reason.c_str());
  const std::vector<Ort::Value> without = plain.Run(inputs);
  const std::vector<Ort::Value> with = fused.Run(inputs);
  for (size_t i = 0; i < with.size(); ++i) Compare(fused.output_names[i], with[i], without[i]);

  for (int run = 0; run < kRuns; ++run) {
    plain.Run(inputs);
    fused.Run(inputs);
  }
  const double before = plain.Median(), after = fused.Median();
  std::printf("  without the library %8.3f ms\n  with the library    %8.3f ms  (%.2fx)\n", before, after,
              before / after);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: run ARTIFACT [INPUT=1x3x48x320 ...]\n");
    return 2;
  }
  try {
    RunArtifact(argv[1], ParseShapes({argv + 2, argv + argc}));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
