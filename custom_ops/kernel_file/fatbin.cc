#include "kernel_file/fatbin.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace onnxopt::cuda {
namespace {

// The container that nvcc, nvFatbin and the driver agree on; not documented by NVIDIA, unchanged since CUDA 4 and read
// by cuobjdump and other tools. A header, then images, each with a header of its own and its length.
constexpr std::uint32_t kMagic = 0xBA55ED50;
constexpr std::uint16_t kPtx = 1;
constexpr std::uint16_t kElf = 2;
constexpr std::uint64_t kSpecific = 0x100000;  // of the flags

struct ContainerHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t body_bytes;
};

struct ImageHeader {
  std::uint16_t kind;
  std::uint16_t version;
  std::uint32_t header_bytes;
  std::uint64_t body_bytes;
  std::uint32_t packed_bytes;
  std::uint32_t options;
  std::uint16_t minor_version;
  std::uint16_t major_version;
  std::uint32_t arch;
  std::uint32_t name_at;
  std::uint32_t name_bytes;
  std::uint64_t flags;
};

static_assert(sizeof(ContainerHeader) == 16 && sizeof(ImageHeader) == 48);

template <typename Header>
bool Read(const std::vector<char>& bytes, std::uint64_t at, Header* header) {
  if (at > bytes.size() || bytes.size() - at < sizeof(Header)) return false;
  std::memcpy(header, bytes.data() + at, sizeof(Header));
  return true;
}

}  // namespace

std::vector<Image> Images(const std::vector<char>& fatbin) {
  std::vector<Image> images;
  ContainerHeader container{};
  if (!Read(fatbin, 0, &container) || container.magic != kMagic) return images;
  ImageHeader image{};
  for (std::uint64_t at = container.header_bytes; Read(fatbin, at, &image);) {
    const std::uint64_t length = image.header_bytes + image.body_bytes;
    if (image.header_bytes < sizeof(ImageHeader) || length < image.header_bytes || length > fatbin.size() - at) break;
    if (image.kind == kPtx || image.kind == kElf) {
      images.push_back({image.arch, image.kind == kPtx, (image.flags & kSpecific) != 0});
    }
    at += length;
  }
  return images;
}

bool HasMachineCodeForAlone(const std::vector<char>& fatbin, unsigned arch) {
  const std::vector<Image> images = Images(fatbin);
  const auto fits = [&](const Image& image) { return image.specific && !image.ptx && image.arch == arch; };
  return std::any_of(images.begin(), images.end(), fits);
}

}  // namespace onnxopt::cuda
