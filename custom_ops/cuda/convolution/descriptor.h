// A descriptor of cuDNN's backend API: an object with attributes, which are set before it is finalized.
#pragma once

#include <string>
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
                                               static_cast<std::int64_t>(values.size()),
                                               static_cast<const void*>(values.data())),
                "cuDNN takes no attribute " + std::to_string(static_cast<int>(name)));
  }
  template <typename T>
  void Set(Name name, Type type, T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    SetRaw(name, type, static_cast<const void*>(&value));
  }
  void Set(Name name, const Descriptor& value) {
    SetRaw(name, Type::kDescriptor, static_cast<const void*>(&value.raw_));
  }

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

  // How many values an attribute has.
  std::size_t Count(Name name, Type type = Type::kDescriptor) const {
    std::int64_t count = 0;
    const Status status =
        api_->cudnnBackendGetAttribute(raw_, static_cast<int>(name), static_cast<int>(type), 0, &count, nullptr);
    api_->Check(status, "cuDNN does not count attribute " + std::to_string(static_cast<int>(name)));
    return static_cast<std::size_t>(count);
  }

  std::string Text(Name name) const {
    std::string text(Count(name, Type::kChar), '\0');
    std::int64_t count = 0;
    const Status status = api_->cudnnBackendGetAttribute(raw_, static_cast<int>(name), static_cast<int>(Type::kChar),
                                                         static_cast<std::int64_t>(text.size()), &count, text.data());
    api_->Check(status, "cuDNN does not tell attribute " + std::to_string(static_cast<int>(name)));
    return text;
  }
  void SetText(Name name, const std::string& text) {
    api_->Check(api_->cudnnBackendSetAttribute(raw_, static_cast<int>(name), static_cast<int>(Type::kChar),
                                               static_cast<std::int64_t>(text.size()), text.data()),
                "cuDNN takes no attribute " + std::to_string(static_cast<int>(name)));
  }

  // Up to `most` descriptors of a kind that this one holds or makes.
  std::vector<Descriptor> Descriptors(Name name, int kind, std::size_t most) const {
    std::vector<Descriptor> descriptors;
    std::vector<BackendDescriptor> raw;
    descriptors.reserve(most);
    for (std::size_t k = 0; k < most; ++k) {
      descriptors.emplace_back(*api_, kind);
      raw.push_back(descriptors.back().raw_);
    }
    if (most == 0) return descriptors;
    auto count = static_cast<std::int64_t>(most);
    const Status status =
        api_->cudnnBackendGetAttribute(raw_, static_cast<int>(name), static_cast<int>(Type::kDescriptor), count, &count,
                                       static_cast<void*>(raw.data()));
    api_->Check(status, "cuDNN does not tell attribute " + std::to_string(static_cast<int>(name)));
    while (descriptors.size() > static_cast<std::size_t>(count)) descriptors.pop_back();
    return descriptors;
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
