// A stand-in for libcudnn.so.9 that convolves on the CPU: graphs of a convolution of images and elementwise steps, and
// the elementwise functions of the older API. Strides are respected. The heuristic offers one engine. Nothing is freed.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

namespace {

using Numbers = std::vector<std::int64_t>;

// Attributes by their numbers in custom_ops/cuda/convolution/cudnn.h.
struct Descriptor {
  std::map<int, Numbers> numbers;
  std::map<int, double> reals;
  std::map<int, std::vector<Descriptor*>> parts;

  std::int64_t Number(int name) const { return numbers.at(name)[0]; }
  Descriptor& Part(int name) const { return *parts.at(name)[0]; }
  double Real(int name, double otherwise) const { return reals.count(name) ? reals.at(name) : otherwise; }
};

constexpr int kHalf = 2;  // cudnnDataType_t
constexpr int kInt8 = 3;
constexpr int kInt32 = 4;
constexpr int kUint8 = 6;
constexpr int kBfloat16 = 9;

// [N, C, H, W] in memory.
struct Layout {
  int type = 0;
  std::array<std::int64_t, 4> dims{};
  std::array<std::int64_t, 4> strides{};
};

float Read(int type, const void* data, std::int64_t at) {
  if (type == kHalf) return static_cast<float>(static_cast<const _Float16*>(data)[at]);
  if (type == kInt8) return static_cast<const std::int8_t*>(data)[at];
  if (type == kUint8) return static_cast<const std::uint8_t*>(data)[at];
  if (type == kInt32) return static_cast<float>(static_cast<const std::int32_t*>(data)[at]);
  if (type != kBfloat16) return static_cast<const float*>(data)[at];
  const std::uint32_t bits = std::uint32_t{static_cast<const std::uint16_t*>(data)[at]} << 16;
  float number = 0;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

void Write(int type, void* data, std::int64_t at, double value) {
  const auto number = static_cast<float>(value);
  if (type == kInt8) {
    static_cast<std::int8_t*>(data)[at] = static_cast<std::int8_t>(std::clamp(std::nearbyint(number), -128.F, 127.F));
  } else if (type == kUint8) {
    static_cast<std::uint8_t*>(data)[at] = static_cast<std::uint8_t>(std::clamp(std::nearbyint(number), 0.F, 255.F));
  } else if (type == kHalf) {
    static_cast<_Float16*>(data)[at] = static_cast<_Float16>(number);
  } else if (type != kBfloat16) {
    static_cast<float*>(data)[at] = number;
  } else {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &number, sizeof(bits));
    static_cast<std::uint16_t*>(data)[at] = static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
  }
}

// Elements of a tensor in the order of its dims; a dim of 1 is broadcast.
struct Values {
  std::array<std::int64_t, 4> dims{};
  std::vector<double> all;

  double& At(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    const std::array<std::int64_t, 4> index{n, c, h, w};
    std::int64_t at = 0;
    for (int d = 0; d < 4; ++d) at = at * dims[d] + (dims[d] == 1 ? 0 : index[d]);
    return all[static_cast<std::size_t>(at)];
  }
};

Values Empty(const std::array<std::int64_t, 4>& dims) {
  return {dims, std::vector<double>(static_cast<std::size_t>(dims[0] * dims[1] * dims[2] * dims[3]))};
}

template <typename Body>
void Each(const std::array<std::int64_t, 4>& dims, const Body& body) {
  for (std::int64_t n = 0; n < dims[0]; ++n)
    for (std::int64_t c = 0; c < dims[1]; ++c)
      for (std::int64_t h = 0; h < dims[2]; ++h)
        for (std::int64_t w = 0; w < dims[3]; ++w) body(n, c, h, w);
}

std::int64_t Place(const Layout& layout, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return n * layout.strides[0] + c * layout.strides[1] + h * layout.strides[2] + w * layout.strides[3];
}

Values Loaded(const Layout& layout, const void* data) {
  Values values = Empty(layout.dims);
  Each(layout.dims, [&](auto... at) { values.At(at...) = Read(layout.type, data, Place(layout, at...)); });
  return values;
}

void Store(const Layout& layout, void* data, Values* values) {
  Each(layout.dims, [&](auto... at) { Write(layout.type, data, Place(layout, at...), values->At(at...)); });
}

Values Convolved(const Descriptor& window, Values x, Values w, const std::array<std::int64_t, 4>& dims) {
  const Numbers& dilations = window.numbers.at(102);
  const Numbers& strides = window.numbers.at(103);
  const Numbers& pads = window.numbers.at(105);
  const std::int64_t share = dims[1] / (x.dims[1] / w.dims[1]);  // results of a group
  Values y = Empty(dims);
  Each(dims, [&](std::int64_t n, std::int64_t k, std::int64_t h, std::int64_t v) {
    double sum = 0;
    Each({1, w.dims[1], w.dims[2], w.dims[3]}, [&](std::int64_t, std::int64_t c, std::int64_t r, std::int64_t s) {
      const std::int64_t row = h * strides[0] + r * dilations[0] - pads[0];
      const std::int64_t column = v * strides[1] + s * dilations[1] - pads[1];
      if (row < 0 || row >= x.dims[2] || column < 0 || column >= x.dims[3]) return;
      sum += x.At(n, k / share * w.dims[1] + c, row, column) * w.At(k, c, r, s);
    });
    y.At(n, k, h, v) = sum;
  });
  return y;
}

// cudnnPointwiseMode_t
double Step(const Descriptor& step, double x, double second) {
  switch (step.Number(0)) {
    case 0:
      return x + second;
    case 1:
      return x * second;
    case 2:
      return std::min(x, second);
    case 3:
      return std::max(x, second);
    case 100:
      return x < 0 ? step.Real(5, 0) * x : std::min(x, step.Real(4, INFINITY));
    case 106:
      return x / (1 + std::exp(-step.Real(8, 1) * x));
  }
  return NAN;
}

// The graph's tensors while it runs: those inside of it, and where the others are.
struct Run {
  std::map<std::int64_t, void*> pointers;
  std::map<std::int64_t, Values> inside;

  static Layout Of(const Descriptor& tensor) {
    Layout layout;
    layout.type = static_cast<int>(tensor.Number(901));
    std::copy_n(tensor.numbers.at(902).begin(), 4, layout.dims.begin());
    std::copy_n(tensor.numbers.at(903).begin(), 4, layout.strides.begin());
    return layout;
  }
  Values Load(const Descriptor& tensor) {
    const std::int64_t id = tensor.Number(906);
    return inside.count(id) ? inside[id] : Loaded(Of(tensor), pointers.at(id));
  }
  void Keep(const Descriptor& tensor, Values values) {
    const std::int64_t id = tensor.Number(906);
    if (pointers.count(id)) return Store(Of(tensor), pointers[id], &values);
    inside[id] = std::move(values);
  }
  void Operate(const Descriptor& operation) {
    if (operation.parts.count(704)) {
      const Descriptor& y = operation.Part(705);
      return Keep(y, Convolved(operation.Part(702), Load(operation.Part(704)), Load(operation.Part(703)), Of(y).dims));
    }
    Values x = Load(operation.Part(751));
    Values second = operation.parts.count(752) ? Load(operation.Part(752)) : Empty({1, 1, 1, 1});
    Values y = Empty(x.dims);
    const Descriptor& step = operation.Part(750);
    Each(y.dims, [&](auto... at) { y.At(at...) = static_cast<float>(Step(step, x.At(at...), second.At(at...))); });
    Keep(operation.Part(753), std::move(y));
  }
};

const Descriptor& GraphOf(const Descriptor& made) {
  for (const int name : {401, 300, 1300, 201}) {
    if (made.parts.count(name)) return GraphOf(made.Part(name));
  }
  return made;
}

int Some(void** made) { return *made = new char, 0; }
const Layout& LayoutOf(const void* tensor) { return *static_cast<const Layout*>(tensor); }
double NumberAt(const void* number) { return *static_cast<const float*>(number); }

}  // namespace

extern "C" {

std::size_t cudnnGetVersion() { return 91900; }
std::size_t cudnnGetCudartVersion() { return 13000; }
const char* cudnnGetErrorString(int) { return "CUDNN_STATUS_OF_THE_TEST"; }
int cudnnCreate(void** handle) { return Some(handle); }
int cudnnSetStream(void*, void*) { return 0; }
int cudnnBackendCreateDescriptor(int, Descriptor** made) { return *made = new Descriptor, 0; }
int cudnnBackendDestroyDescriptor(Descriptor*) { return 0; }
int cudnnBackendFinalize(Descriptor*) { return 0; }
int cudnnBackendSetAttribute(Descriptor* made, int name, int type, std::int64_t count, const void* values) {
  Numbers numbers;
  for (std::int64_t k = 0; k < count; ++k) {
    switch (type) {
      case 15:
        if (k == 0) made->parts[name].clear();
        made->parts[name].push_back(static_cast<Descriptor* const*>(values)[k]);
        break;
      case 4:
        made->reals[name] = static_cast<double>(static_cast<const float*>(values)[k]);
        break;
      case 5:
        made->reals[name] = static_cast<const double*>(values)[k];
        break;
      case 2:
      case 24:
        numbers.push_back(static_cast<const char*>(values)[k]);
        break;
      case 0:
      case 3:
      case 6:
        numbers.push_back(static_cast<const std::int64_t*>(values)[k]);
        break;
      default:
        numbers.push_back(static_cast<const int*>(values)[k]);
    }
  }
  made->numbers[name] = numbers;
  return 0;
}
int cudnnBackendGetAttribute(Descriptor* made, int name, int, std::int64_t wanted, std::int64_t* count, void* values) {
  *count = name == 202 || name == 300 || name == 402 || name == 1301 ? 1 : 0;
  if (wanted == 0) return 0;
  if (name == 202) (*static_cast<Descriptor**>(values))->parts[300] = {made};
  if (name == 300) (*static_cast<Descriptor**>(values))->parts[1300] = {&made->Part(300)};
  if (name == 402 || name == 1301) *static_cast<std::int64_t*>(values) = 0;
  return 0;
}
int cudnnBackendExecute(void*, Descriptor* plan, Descriptor* pack) {
  Run run;
  const Numbers& ids = pack->numbers[1000];
  for (std::size_t k = 0; k < ids.size(); ++k) run.pointers[ids[k]] = reinterpret_cast<void*>(pack->numbers[1001][k]);
  for (const Descriptor* operation : GraphOf(*plan).parts.at(801)) run.Operate(*operation);
  return 0;
}
int cudnnCreateTensorDescriptor(void** tensor) { return *tensor = new Layout, 0; }
int cudnnDestroyTensorDescriptor(void*) { return 0; }
int cudnnSetTensor4dDescriptorEx(void* t, int type, int n, int c, int h, int w, int sn, int sc, int sh, int sw) {
  *static_cast<Layout*>(t) = {type, {n, c, h, w}, {sn, sc, sh, sw}};
  return 0;
}
int cudnnAddTensor(void*, const void* alpha, void* at, const void* a, const void* beta, void* ct, void* c) {
  Values first = Loaded(LayoutOf(at), a);
  Values sum = Loaded(LayoutOf(ct), c);
  Each(sum.dims, [&](auto... k) {
    sum.At(k...) = NumberAt(alpha) * first.At(k...) + (NumberAt(beta) == 0 ? 0 : NumberAt(beta) * sum.At(k...));
  });
  return Store(LayoutOf(ct), c, &sum), 0;
}
int cudnnCreateActivationDescriptor(void** a) { return *a = new std::pair<int, double>, 0; }
int cudnnDestroyActivationDescriptor(void*) { return 0; }
int cudnnSetActivationDescriptor(void* a, int mode, int, double limit) {
  *static_cast<std::pair<int, double>*>(a) = {mode, limit};
  return 0;
}
int cudnnActivationForward(void*, void* a, const void* alpha, void* xt, const void* x, const void*, void* yt, void* y) {
  const auto [mode, limit] = *static_cast<std::pair<int, double>*>(a);
  Values values = Loaded(LayoutOf(xt), x);
  for (double& v : values.all) {
    const double gate = 1 / (1 + std::exp(-v));
    v = NumberAt(alpha) * (mode == 0   ? gate
                           : mode == 6 ? v * gate
                                       : std::min(std::max(v, 0.0), mode == 3 ? limit : INFINITY));
  }
  return Store(LayoutOf(yt), y, &values), 0;
}
int cudnnSetTensor(void*, void* yt, void* y, const void* value) {
  Values values = Empty(LayoutOf(yt).dims);
  std::fill(values.all.begin(), values.all.end(), NumberAt(value));
  return Store(LayoutOf(yt), y, &values), 0;
}
int cudnnCreateOpTensorDescriptor(void** op) { return *op = new int, 0; }
int cudnnDestroyOpTensorDescriptor(void*) { return 0; }
int cudnnSetOpTensorDescriptor(void* op, int mode, int, int) { return *static_cast<int*>(op) = mode, 0; }
int cudnnOpTensor(void*, void* op, const void*, void* at, const void* a, const void* beta, void* bt, const void* b,
                  const void*, void* ct, void* c) {
  const int mode = *static_cast<const int*>(op);
  Values first = Loaded(LayoutOf(at), a);
  Values second = Loaded(LayoutOf(bt), b);
  Each(first.dims, [&](auto... k) {
    const double x = first.At(k...);
    const double y = NumberAt(beta) * second.At(k...);
    first.At(k...) = mode == 1 ? x * y : mode == 2 ? std::min(x, y) : std::max(x, y);
  });
  return Store(LayoutOf(ct), c, &first), 0;
}
}
