#include "cuda/gemm/choose.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gemm/other_sizes.h"
#include "cuda/launch/stopwatch.h"
#include "kernel_file/measured/gemm_algorithms.h"
#include "program/generated/costs.h"

namespace onnxopt::cuda {
namespace {

using cublaslt::Candidate;

using costs::convolution::kFirstRunPlans;
using costs::convolution::kTunedPlans;
using costs::gemm::kFirstRunAlgorithms;
using costs::gemm::kManyPixels;
using costs::gemm::kShallow;
using costs::gemm::kTunedAlgorithms;

// Whether the graph states the shapes, or a process may well run no others: those that a node meets first. Networks
// over images (of four dims) have many products, which together would take long.
bool IsLikelyToLast(const ProductCall& call) { return call.states_shapes || (call.is_first && call.a.rank < 4); }

// The default stream cannot be captured, which measuring does.
bool Measures(const ProductCall& call) {
  if (call.capturing || call.stream == nullptr || ChoosesForSizesAlone()) return false;
  return Algorithms::Get().tunes() || (IsLikelyToLast(call) && MeasuresFirstRuns());
}

// How many of cuDNN's plans are worth measuring. Sums over few channels leave cuBLASLt's tiles half empty
// (costs/data/gemm.json).
std::size_t MaxConvolutions(const PlanKey& key, bool tunes) {
  if (tunes) return kTunedPlans;
  return key.k <= kShallow && key.m >= kManyPixels ? kFirstRunPlans : 0;
}

std::size_t MaxWorkspace(const Plan& plan) { return plan.key().workspace ? kWorkspaceBytes : 0; }

// Takes what was measured before, or of it the algorithm alone where cuDNN refuses its plan. False where cuBLASLt
// refuses the algorithm.
bool Revive(const ProductCall& call, const TunedAlgorithm& tuned, Plan* plan) {
  Candidate candidate{};
  if (!plan->Revive(call.handle, tuned.algorithm, &candidate)) return false;
  plan->Choose(candidate);
  if (!tuned.convolution || call.capturing) return true;
  const cudnn::Api* const api = CudnnForProducts();
  const auto problem = AsConvolution(plan->gemm(), plan->key(), call.a);
  if (api == nullptr || api->cudnnGetVersion() != tuned.convolution->version || !problem) return true;
  auto convolution = RevivedConvolution(*api, call.context, *problem, MaxWorkspace(*plan), tuned.convolution->choice);
  if (convolution) plan->Choose(std::move(*convolution));
  return true;
}

// Up to `most` plans of cuDNN's that run the product, which each has done once.
std::vector<ProductConvolution> Rivals(const ProductCall& call, const Operands& operands, const cudnn::Api& api,
                                       const Plan& plan, std::size_t most) {
  const auto problem = AsConvolution(plan.gemm(), plan.key(), call.a);
  if (!problem) return {};
  auto offered = OfferedConvolutions(api, call.context, *problem, MaxWorkspace(plan), most);
  std::vector<ProductConvolution> rivals;
  for (ProductConvolution& convolution : offered) {
    if (!convolution.Choice()) continue;
    try {
      convolution.Run(operands, call.scratch(convolution.workspace()), call.stream);
    } catch (const cudnn::Refused&) {
      continue;
    }
    rivals.push_back(std::move(convolution));
  }
  return rivals;
}

// Measures cuDNN's plans beside the fastest algorithm, and takes one that is faster.
void MeasureConvolutions(const ProductCall& call, const Operands& operands, const Stopwatch& stopwatch,
                         std::size_t most, Plan* plan, TunedAlgorithm* choice) {
  const cudnn::Api* const api = most == 0 ? nullptr : CudnnForProducts();
  if (api == nullptr) return;
  std::vector<ProductConvolution> rivals = Rivals(call, operands, *api, *plan, most);
  if (rivals.empty()) return;
  std::size_t bytes = plan->workspace();
  for (const ProductConvolution& rival : rivals) bytes = std::max(bytes, rival.workspace());
  void* const workspace = call.scratch(bytes);
  const auto [algorithm, best] = stopwatch.Fastest(1 + rivals.size(), [&](std::size_t way) {
    if (way == 0) return plan->Run(call.handle, operands, [&](std::size_t) { return workspace; }, call.stream);
    rivals[way - 1].Run(operands, workspace, call.stream);
  });
  if (best.way == 0 || best.microseconds >= choice->microseconds) return;
  ProductConvolution& fastest = rivals[best.way - 1];
  choice->convolution = {api->cudnnGetVersion(), *fastest.Choice(), algorithm.microseconds};
  choice->microseconds = best.microseconds;
  plan->Choose(std::move(fastest));
}

TunedAlgorithm Measure(const ProductCall& call, const Operands& operands, const std::vector<Candidate>& candidates,
                       bool tunes, Plan* plan) {
  const Stopwatch stopwatch(call.driver, call.stream, MemoryToEvictWith(call.driver), tunes ? kCareful : kQuick);
  std::size_t bytes = 0;
  for (const Candidate& each : candidates) bytes = std::max(bytes, each.workspace);
  void* const workspace = call.scratch(bytes);
  const auto [first, best] = stopwatch.Fastest(candidates.size(), [&](std::size_t way) {
    plan->RunWith(candidates[way], call.handle, operands, workspace, call.stream);
  });
  plan->Choose(candidates[best.way]);
  TunedAlgorithm choice{candidates[best.way].algorithm, best.microseconds, first.microseconds, {}};
  MeasureConvolutions(call, operands, stopwatch, MaxConvolutions(plan->key(), tunes), plan, &choice);
  return choice;
}

}  // namespace

void Choose(const ProductCall& call, const Operands& operands, Plan* plan) {
  Algorithms& measured = Algorithms::Get();
  const std::string product = plan->Describe();
  const std::string gpu = NameOfGpu(call.driver);
  const std::size_t version = call.api.cublasLtGetVersion();
  std::optional<TunedAlgorithm> tuned = measured.Find(gpu, version, product);
  if (measured.tunes() && !call.states_shapes && !call.capturing) ChooseForSizes(call, gpu, *plan);
  std::unique_lock<std::mutex> alone(Measuring(), std::defer_lock);
  if (!tuned && Measures(call)) {
    alone.lock();
    tuned = measured.FindKept(gpu, version, product);
  }
  if (tuned && Revive(call, *tuned, plan)) return;
  const bool measures = !tuned && alone.owns_lock();
  const int most = measured.tunes() ? kTunedAlgorithms : kFirstRunAlgorithms;
  const std::vector<Candidate> candidates = plan->Candidates(call.handle, measures ? most : 1);
  if (candidates.empty()) {
    throw cublaslt::Refusal("cuBLASLt has no algorithm for " + product +
                            "; set ONNXOPT_DISABLE=1 to run without onnxopt's kernels, and report this product");
  }
  plan->Choose(candidates[0]);
  if (!measures) return;
  try {
    measured.Add(gpu, version, product, Measure(call, operands, candidates, measured.tunes(), plan));
  } catch (const Error&) {
    if (measured.tunes()) throw;  // nobody asked for this measurement: the heuristic's algorithm runs
  }
}

}  // namespace onnxopt::cuda
