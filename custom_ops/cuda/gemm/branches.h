// Streams beside the one of a call, for products that may run side by side: as branches of a CUDA graph.
#pragma once

#include <memory>
#include <vector>

#include "cuda/launch/driver.h"
#include "program/gemm.h"

namespace onnxopt::cuda {

// Streams and events for one stream's calls, which come one after the other.
class Branches {
 public:
  explicit Branches(const Driver& driver) : driver_(driver) {}
  Branches(const Branches&) = delete;
  Branches& operator=(const Branches&) = delete;
  ~Branches();

  // Makes what `count` branches need. Throws Error where the driver refuses. Not while a stream is capturing.
  void Prepare(std::size_t count);

 private:
  friend class Fork;
  struct Branch {
    Stream stream;
    Event done;
  };

  const Driver& driver_;
  Event start_ = nullptr;
  std::vector<Branch> branches_;
};

// The branches of a stream, with room for Gemm::kMaxOutputs of them. They live as long as somebody holds them.
std::shared_ptr<Branches> BranchesOf(Stream stream, const Driver& driver);

// Work of one call on several streams: all of it starts after what the call's stream has to do already, and Join makes
// that stream wait for all of it.
class Fork {
 public:
  // branches: nullptr to stay on `stream`. count: of branches beside it.
  Fork(Branches* branches, Stream stream, std::size_t count);

  // Where part `k` runs: the first one on the call's stream.
  Stream stream(std::size_t k) const {
    return k == 0 || branches_ == nullptr ? stream_ : branches_->branches_[k - 1].stream;
  }

  void Join() const;

 private:
  Branches* branches_;
  Stream stream_;
  std::size_t count_;
};

}  // namespace onnxopt::cuda
