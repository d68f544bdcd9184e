// A descriptor of cuDNN's backend API: an object with attributes, which are set before it is finalized.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/convolution/cudnn.h"

namespace onnxopt::cudnn {

class Descriptor {
 public:
  // Throws Refused where cuDNN knows no such kind. Every member does where cuDNN returns an error.
  Descriptor(const Api& api, int kind) : api_(&api) {
    api.Check(api.cudnnBackendCreateDescriptor(kind, &raw_), "cuDNN makes no descriptor " + std::to_string(kind));
  }
  Descriptor(Descriptor&& other) noexcept : api_(other.api_), raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (raw_ != nullptr) api_->cudnnBackendDestroyDescriptor(raw_);
  }

  template <typename T>
  void Set(Name name, Type type, const std::vector<T>& values) {
    api_->Check(api_->cudnnBackendSetAttribute(raw_, static_cast<int>(name), static_cast<int>(type),
                                               static_cast<std::int64_t>(values.size()), values.data()),
                "cuDNN takes no attribute " + std::to_string(static_cast<int>(name)));
  }
  template <typename T>
  void Set(Name name, Type type, T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    SetRaw(name, type, &value);
  }
  void Set(Name name, const Descriptor& value) { SetRaw(name, Type::kDescriptor, &value.raw_); }

  void Finalize(const char* what) { api_->Check(api_->cudnnBackendFinalize(raw_), what); }
  // Whether cuDNN takes the descriptor.
  bool TryFinalize() { return api_->cudnnBackendFinalize(raw_) == kSuccess; }

  std::int64_t Number(Name name, Type type = Type::kInt64) const {
    std::int64_t value = 0;
    std::int64_t count = 0;
    api_->Check(api_->cudnnBackendGetAttribute(raw_, static_cast<int>(name), static_cast<int>(type), 1, &count, &value),
                "cuDNN does not tell attribute " + std::to_string(static_cast<int>(name)));
    return value;
  }

  // Up to `most` values of an enum; none where cuDNN does not tell.
  std::vector<int> Notes(Name name, Type type, std::size_t most) const {
    std::vector<int> notes(most);
    std::int64_t count = 0;
    const Status status = api_->cudnnBackendGetAttribute(raw_, static_cast<int>(name), static_cast<int>(type),
                                                         static_cast<std::int64_t>(most), &count, notes.data());
    notes.resize(status == kSuccess && count > 0 ? static_cast<std::size_t>(count) : 0);
    return notes;
  }

  // Descriptors of a kind that this one holds or makes.
  std::vector<Descriptor> Descriptors(Name name, int kind) const {
    std::int64_t count = 0;
    const int type = static_cast<int>(Type::kDescriptor);
    const Status counted = api_->cudnnBackendGetAttribute(raw_, static_cast<int>(name), type, 0, &count, nullptr);
    api_->Check(counted, "cuDNN does not count attribute " + std::to_string(static_cast<int>(name)));
    std::vector<Descriptor> made;
    std::vector<BackendDescriptor> raw;
    for (std::int64_t k = 0; k < count; ++k) {
      made.emplace_back(*api_, kind);
      raw.push_back(made.back().raw_);
    }
    if (count == 0) return made;
    const Status status = api_->cudnnBackendGetAttribute(raw_, static_cast<int>(name), type, count, &count, raw.data());
    api_->Check(status, "cuDNN does not tell attribute " + std::to_string(static_cast<int>(name)));
    made.erase(made.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(made.size(), count)), made.end());
    return made;
  }

  BackendDescriptor raw() const { return raw_; }

 private:
  void SetRaw(Name name, Type type, const void* value) {
    api_->Check(api_->cudnnBackendSetAttribute(raw_, static_cast<int>(name), static_cast<int>(type), 1, value),
                "cuDNN takes no attribute " + std::to_string(static_cast<int>(name)));
  }

  const Api* api_;
  BackendDescriptor raw_ = nullptr;
};

}  // namespace onnxopt::cudnn
