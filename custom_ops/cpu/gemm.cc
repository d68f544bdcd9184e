#include "cpu/gemm.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "call/gemm.h"
#include "call/tensors.h"
#include "cpu/evaluate/best_evaluator.h"
#include "cpu/first_failure.h"
#include "cpu/weight_of_codes.h"

namespace onnxopt {
namespace {

constexpr std::int64_t kRows = 4;         // of a, whose products with one row of b are summed at once
constexpr std::int64_t kColumns = 64;     // of b, whose sums stay in registers or in the first cache
constexpr std::int64_t kTaskRows = 32;    // of the output, a task
constexpr std::int64_t kTransposed = 64;  // rows of b^T that are turned at once

#if defined(__x86_64__)
#define ONNXOPT_EVERY_X86 __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ONNXOPT_EVERY_X86
#endif

// sums[r][c] += sum over k of a[r][k] * b[k][c], for full tiles. a: rows `lda` apart; b: rows `ldb` apart.
ONNXOPT_EVERY_X86 void Tile(const float* a, std::int64_t lda, const float* b, std::int64_t ldb, std::int64_t depth,
                            float* sums) {
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      const float x = a[r * lda + k];
      for (std::int64_t c = 0; c < kColumns; ++c) sums[r * kColumns + c] += x * b[k * ldb + c];
    }
  }
}

void Edge(const float* a, std::int64_t lda, const float* b, std::int64_t ldb, std::int64_t depth, std::int64_t rows,
          std::int64_t columns, float* sums) {
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) sums[r * kColumns + c] += a[r * lda + k] * b[k * ldb + c];
    }
  }
}

float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0 ? 0 : x;  // keeps NaN
    case Activation::kGelu:
      return 0.5F * x * std::erfc(x * -0.70710678F);
    case Activation::kGeluTanh:
      return 0.5F * x * (1 + std::tanh(0.7978845608F * (x + 0.044715F * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    default:
      return x;
  }
}

// Storage elements as float32, in `buffer` where they are not that already.
class Floats {
 public:
  Floats(Dtype dtype) : size_(Size(dtype)), load_(BestEvaluator().load(dtype)) {}

  const float* Read(const void* data, std::int64_t first, std::int64_t count, float* buffer) const {
    const char* from = static_cast<const char*>(data) + static_cast<std::size_t>(first) * size_;
    if (load_ == nullptr) return reinterpret_cast<const float*>(from);
    if (count > 0) load_(buffer, from, nullptr, nullptr, static_cast<std::size_t>(count));
    return buffer;
  }
  bool in_place() const { return load_ == nullptr; }

 private:
  std::size_t size_;
  StepFunction load_;
};

// One call's work, in independent tasks.
class Job {
 public:
  Job(const Gemm& gemm, const Product& product, const void* const* inputs, std::size_t part, void* output)
      : gemm_(gemm),
        p_(product),
        inputs_(inputs),
        part_(static_cast<std::int64_t>(part)),
        output_(output),
        operands_(gemm.operands),
        floats_(gemm.dtype) {
    if (gemm.packed) codes_.emplace(gemm, inputs, product.k);
    if (gemm.bias) {
      std::vector<float> buffer(static_cast<std::size_t>(p_.n));
      const float* bias = floats_.Read(inputs[*gemm.bias], part_ * p_.n, p_.n, buffer.data());
      bias_.assign(bias, bias + p_.n);
    }
    matrices_ = 1;
    for (std::size_t d = 0; d < p_.batch_dims; ++d) matrices_ *= p_.batch[d].extent;
    blocks_ = (p_.m - 1) / kTaskRows + 1;
  }

  std::size_t tasks() const { return static_cast<std::size_t>(matrices_ * blocks_); }

  void Run(std::size_t task) noexcept {
    const auto t = static_cast<std::int64_t>(task);
    failure_.Guard([&] { Block(t / blocks_, t % blocks_ * kTaskRows); });
  }

  void Finish() const { failure_.Rethrow(); }

 private:
  // Rows [row, row + kTaskRows) of one matrix of the batch.
  void Block(std::int64_t matrix, std::int64_t row) const {
    std::int64_t a = 0;
    std::int64_t b = part_ * p_.part_b;
    std::int64_t d = 0;
    for (std::size_t k = p_.batch_dims; k-- > 0; matrix /= p_.batch[k].extent) {
      const std::int64_t index = matrix % p_.batch[k].extent;
      a += index * p_.batch[k].stride_a;
      b += index * p_.batch[k].stride_b;
      d += index * p_.batch[k].stride_d;
    }
    const std::int64_t rows = std::min(kTaskRows, p_.m - row);
    std::vector<float> left;
    const float* x = Left(a, row, rows, &left);
    std::vector<float> right(static_cast<std::size_t>(std::max<std::int64_t>(p_.k, 1) * kColumns));
    std::vector<float> line(static_cast<std::size_t>(kColumns));
    for (std::int64_t column = 0; column < p_.n; column += kColumns) {
      const std::int64_t columns = std::min(kColumns, p_.n - column);
      std::int64_t ldb = kColumns;
      const float* y = Right(b, column, columns, &right, &ldb);
      for (std::int64_t r = 0; r < rows; r += kRows) {
        float sums[kRows * kColumns] = {};
        const std::int64_t height = std::min(kRows, rows - r);
        if (height == kRows && columns == kColumns) {
          Tile(x + r * p_.k, p_.k, y, ldb, p_.k, sums);
        } else {
          Edge(x + r * p_.k, p_.k, y, ldb, p_.k, height, columns, sums);
        }
        for (std::int64_t h = 0; h < height; ++h) {
          Store(sums + h * kColumns, d + (row + r + h) * p_.n + column, column, columns, line.data());
        }
      }
    }
  }

  // Rows of op(a), dense and k long.
  const float* Left(std::int64_t at, std::int64_t row, std::int64_t rows, std::vector<float>* buffer) const {
    if (!gemm_.transpose_a) {
      if (!operands_.in_place()) buffer->resize(static_cast<std::size_t>(rows * p_.k));
      return operands_.Read(inputs_[gemm_.a], at + row * p_.k, rows * p_.k, buffer->data());
    }
    buffer->resize(static_cast<std::size_t>(rows * p_.k + rows));
    float* line = buffer->data() + rows * p_.k;
    for (std::int64_t k = 0; k < p_.k; ++k) {
      const float* from = operands_.Read(inputs_[gemm_.a], at + k * p_.m + row, rows, line);
      for (std::int64_t r = 0; r < rows; ++r) (*buffer)[static_cast<std::size_t>(r * p_.k + k)] = from[r];
    }
    return buffer->data();
  }

  // Columns of op(b), k rows of them, `ldb` apart.
  const float* Right(std::int64_t at, std::int64_t column, std::int64_t columns, std::vector<float>* buffer,
                     std::int64_t* ldb) const {
    if (!gemm_.transpose_b) {
      if (operands_.in_place()) {
        *ldb = p_.ldb;
        return operands_.Read(inputs_[gemm_.b], at + column, columns, nullptr);
      }
      for (std::int64_t k = 0; k < p_.k; ++k) {
        operands_.Read(inputs_[gemm_.b], at + k * p_.ldb + column, columns, buffer->data() + k * kColumns);
      }
      return buffer->data();
    }
    float line[kTransposed];
    for (std::int64_t c = 0; c < columns; ++c) {
      for (std::int64_t k = 0; k < p_.k; k += kTransposed) {
        const std::int64_t count = std::min(kTransposed, p_.k - k);
        const float* from = Transposed(at / std::max<std::int64_t>(p_.k, 1) + column + c, k, count, line);
        for (std::int64_t i = 0; i < count; ++i) (*buffer)[static_cast<std::size_t>((k + i) * kColumns + c)] = from[i];
      }
    }
    return buffer->data();
  }

  // Elements [k, k + count) of a row of a transposed b.
  const float* Transposed(std::int64_t row, std::int64_t k, std::int64_t count, float* line) const {
    if (!codes_) return operands_.Read(inputs_[gemm_.b], row * p_.k + k, count, line);
    codes_->Read(row, k, count, line);
    return line;
  }

  void Store(float* sums, std::int64_t at, std::int64_t column, std::int64_t columns, float* line) const {
    const float* residual = gemm_.residual ? floats_.Read(inputs_[*gemm_.residual], at, columns, line) : nullptr;
    for (std::int64_t c = 0; c < columns; ++c) {
      float value = gemm_.alpha * sums[c];
      if (gemm_.bias) value += bias_[static_cast<std::size_t>(column + c)];
      if (residual != nullptr) value += gemm_.beta * residual[c];
      sums[c] = Activate(gemm_.activation, value);
    }
    const StepFunction store = BestEvaluator().store(gemm_.dtype);
    char* out = static_cast<char*>(output_) + static_cast<std::size_t>(at) * Size(gemm_.dtype);
    if (store != nullptr) {
      store(out, sums, nullptr, nullptr, static_cast<std::size_t>(columns));
    } else {
      std::copy_n(sums, columns, reinterpret_cast<float*>(out));
    }
  }

  const Gemm& gemm_;
  const Product& p_;
  const void* const* inputs_;
  std::int64_t part_;
  void* output_;
  const Floats operands_;
  const Floats floats_;  // of the output's dtype
  std::optional<WeightOfCodes> codes_;
  std::vector<float> bias_;
  std::int64_t matrices_;
  std::int64_t blocks_;
  FirstFailure failure_;
};

// A row of gate(g) * u of the halves of a product's columns, which are 16-bit floats.
void Gate(const Gemm& gemm, const void* halves, std::int64_t columns, std::int64_t row, void* output) {
  const Floats floats(gemm.dtype);
  std::vector<float> g(static_cast<std::size_t>(columns));
  std::vector<float> u(static_cast<std::size_t>(columns));
  floats.Read(halves, 2 * row * columns, columns, g.data());
  floats.Read(halves, (2 * row + 1) * columns, columns, u.data());
  for (std::size_t c = 0; c < g.size(); ++c) g[c] = Activate(gemm.gate, g[c]) * u[c];
  char* const out = static_cast<char*>(output) + static_cast<std::size_t>(row * columns) * Size(gemm.dtype);
  BestEvaluator().store(gemm.dtype)(out, g.data(), nullptr, nullptr, g.size());
}

}  // namespace

void GemmCpuKernel::Compute(OrtKernelContext* context) const {
  const Gemm& gemm = kernel().meaning.As<Gemm>();
  Shape shapes[kGemmInputs];
  const void* inputs[kGemmInputs] = {};
  for (std::size_t k = 0; k < gemm.inputs; ++k) inputs[k] = InputTensor(context, k, &shapes[k]);
  const Product product = MakeProduct(gemm, shapes);
  for (std::size_t part = 0; part < gemm.parts; ++part) {
    void* output = OutputTensor(context, part, product.output);
    if (output == nullptr || product.output.count() == 0) continue;
    const bool gated = gemm.gate != Activation::kNone;
    std::vector<char> halves(gated ? static_cast<std::size_t>(product.m * product.n) * Size(gemm.dtype) : 0);
    Job job(gemm, product, inputs, part, gated ? halves.data() : output);
    const auto run = [](void* data, std::size_t t) { static_cast<Job*>(data)->Run(t); };
    if (job.tasks() == 1) {
      job.Run(0);
    } else {
      Check(Ort().KernelContext_ParallelFor(context, run, job.tasks(), 0, &job));
    }
    job.Finish();
    for (std::int64_t row = 0; gated && row < product.m; ++row) {
      Gate(gemm, halves.data(), product.n / 2, row, output);
    }
  }
}

}  // namespace onnxopt
