#include "cuda/gemm/branches.h"

#include <map>
#include <mutex>

#include "program/gemm.h"

namespace onnxopt::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING

}  // namespace

Branches::~Branches() {
  for (const Branch& branch : branches_) {
    if (branch.done != nullptr) driver_.cuEventDestroy(branch.done);
    if (branch.stream != nullptr) driver_.cuStreamDestroy(branch.stream);
  }
  if (start_ != nullptr) driver_.cuEventDestroy(start_);
}

void Branches::Prepare(std::size_t count) {
  if (start_ == nullptr) driver_.Check(driver_.cuEventCreate(&start_, kDisableTiming), "cannot make an event");
  while (branches_.size() < count) {
    Branch& branch = branches_.emplace_back();
    driver_.Check(driver_.cuStreamCreate(&branch.stream, kNonBlocking), "cannot make a stream");
    driver_.Check(driver_.cuEventCreate(&branch.done, kDisableTiming), "cannot make an event");
  }
}

std::shared_ptr<Branches> BranchesOf(Stream stream, const Driver& driver) {
  static std::mutex mutex;
  static auto* const entries = new std::map<Stream, std::weak_ptr<Branches>>;  // outlives every kernel
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<Branches>& entry = (*entries)[stream];
  std::shared_ptr<Branches> branches = entry.lock();
  if (branches == nullptr) {
    branches = std::make_shared<Branches>(driver);
    branches->Prepare(Gemm::kMaxOutputs - 1);
    entry = branches;
  }
  return branches;
}

Fork::Fork(Branches* branches, Stream stream, std::size_t count)
    : branches_(count == 0 ? nullptr : branches), stream_(stream), count_(count) {
  if (branches_ == nullptr) return;
  const Driver& driver = branches_->driver_;
  driver.Check(driver.cuEventRecord(branches_->start_, stream), "cannot record an event");
  for (std::size_t k = 0; k < count; ++k) {
    driver.Check(driver.cuStreamWaitEvent(branches_->branches_[k].stream, branches_->start_, 0),
                 "cannot fork a stream");
  }
}

void Fork::Join() const {
  if (branches_ == nullptr) return;
  const Driver& driver = branches_->driver_;
  for (std::size_t k = 0; k < count_; ++k) {
    const Branches::Branch& branch = branches_->branches_[k];
    driver.Check(driver.cuEventRecord(branch.done, branch.stream), "cannot record an event");
    driver.Check(driver.cuStreamWaitEvent(stream_, branch.done, 0), "cannot join a stream");
  }
}

}  // namespace onnxopt::cuda
