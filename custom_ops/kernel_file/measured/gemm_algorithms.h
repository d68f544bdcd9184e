// Algorithms chosen by measurement, kept as data: gemm_algos.json beside the library (file.h). An
// entry:
//
//   {"gpu": "NVIDIA H200", "cublaslt": 130100, "product": "float16 m1024 n768 k768 bias",
//    "algorithm": [8 words as hex], "microseconds": 9.1, "heuristic_microseconds": 9.9}
//
// Where a plan of cuDNN's was faster than every algorithm, "microseconds" is its time, and the entry has also
//
//    "cudnn": {"version": 91900, "engine": 4, "knobs": [[type, value], ...], "algorithm_microseconds": 9.6}
//
// Another version of cuDNN, or none, leaves the algorithm.
//
// An entry of a product whose number of rows comes with its input has "about" in place of "product", with m1, and
// "algorithms", a list of what cuBLASLt's heuristic chose for more and fewer rows, in place of the last three.
//
// An entry counts only for the same GPU model and the same version of cuBLASLt. ONNXOPT_GEMM_TUNE=<path> has every
// product that has no entry measured when it is first run (never under capture) and written to that file. Without it,
// products of shapes that the graph states are measured too, among fewer algorithms, and kept in the user's cache.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernel_file/measured/convolution_plans.h"
#include "kernel_file/measured/kept.h"

namespace onnxopt::cuda {

struct Algorithm {  // cublasLtMatmulAlgo_t
  std::uint64_t data[8];

  bool operator==(const Algorithm& other) const { return std::equal(data, data + 8, other.data); }
};

// A plan of cuDNN's for the same product.
struct TunedConvolution {
  std::size_t version;  // of cuDNN
  EngineChoice choice;
  double algorithm_microseconds;  // of the algorithm that it beat
};

struct TunedAlgorithm {
  Algorithm algorithm;            // the fastest one
  double microseconds;            // of what is to run: the convolution, where there is one
  double heuristic_microseconds;  // of the algorithm that would have run otherwise
  std::optional<TunedConvolution> convolution;
};

// By GPU model, version of cuBLASLt and product.
using AlgorithmTable = std::map<std::tuple<std::string, std::size_t, std::string>, TunedAlgorithm>;

// The algorithms of entries with "about", by the same.
using ExpectedAlgorithms = std::map<AlgorithmTable::key_type, std::vector<Algorithm>>;

// Adds an entry of the file to its table. Throws Error naming the place of what is damaged.
void ReadTunedAlgorithm(const JsonReader& entry, AlgorithmTable* table, ExpectedAlgorithms* expected);

class Algorithms {
 public:
  // What lies beside the library, and in the file that ONNXOPT_GEMM_TUNE names. Read once. Throws Error if one is
  // damaged.
  static Algorithms& Get();

  std::optional<TunedAlgorithm> Find(const std::string& gpu, std::size_t version, const std::string& product) const;

  // The same, and what an earlier process kept in the user's cache, where nothing is to be written to a file.
  std::optional<TunedAlgorithm> FindKept(const std::string& gpu, std::size_t version, const std::string& product);

  // Whether products without an entry are to be measured.
  bool tunes() const { return file_.tunes(); }

  // Keeps an entry, and writes the file anew, or to the user's cache. Throws Error where the file cannot be written.
  void Add(const std::string& gpu, std::size_t version, const std::string& product, const TunedAlgorithm& tuned);

  // Algorithms for numbers of rows that may come, none where `tune` has not chosen. about: the product with one row.
  std::vector<Algorithm> Expected(const std::string& gpu, std::size_t version, const std::string& about) const;

  // Keeps some more, each once, and writes the file anew.
  void AddExpected(const std::string& gpu, std::size_t version, const std::string& about,
                   const std::vector<Algorithm>& algorithms);

 private:
  Algorithms();
  void WriteFile() const;

  mutable std::mutex mutex_;
  AlgorithmTable measured_;
  ExpectedAlgorithms expected_;
  const KeptEntries kept_{"products"};
  const MeasuredFile file_;  // last: it fills known_ when it is made
};

}  // namespace onnxopt::cuda
