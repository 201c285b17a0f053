#include "daemon/transport/local/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

namespace tensorlane::local {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status cannot_make(const char* what) {
  return {Code::kResourceExhausted,
          fmt::format("cannot make {} KiB of shared memory: {}: {}", kSegmentBytes >> 10, what,
                      handshake::errno_text(errno)),
          "local transport", "free memory or descriptors on this host"};
}

Status not_a_segment(const std::string& why) {
  return {Code::kCorrupt, "the peer's shared memory " + why, {}, "install the same tensorlane version on every host"};
}

}  // namespace

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Segment::~Segment() {
  if (base_ != nullptr) ::munmap(base_, kSegmentBytes);
}

Result<Segment> Segment::map(handshake::Fd descriptor) {
  void* base = ::mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (base == MAP_FAILED) return cannot_make("mmap");
  Segment segment;
  segment.base_ = static_cast<std::byte*>(base);
  segment.descriptor_ = std::move(descriptor);
  return segment;
}

Result<Segment> Segment::create() {
  handshake::Fd descriptor(::memfd_create("tensorlane-flow", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return cannot_make("memfd_create");
  if (::fallocate(descriptor.get(), 0, 0, static_cast<off_t>(kSegmentBytes)) != 0) return cannot_make("fallocate");
  if (::fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0) return cannot_make("fcntl");
  return map(std::move(descriptor));
}

Result<Segment> Segment::adopt(handshake::Fd descriptor) {
  if (!descriptor.valid()) return not_a_segment("did not come");
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return not_a_segment("is not sealed");
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0 || info.st_size != static_cast<off_t>(kSegmentBytes))
    return not_a_segment(fmt::format("has {} bytes, expected {}", info.st_size, kSegmentBytes));
  // A huge page that is taken away might not come back.
  struct statfs system {};
  if (::fstatfs(descriptor.get(), &system) != 0 || system.f_type != TMPFS_MAGIC)
    return not_a_segment("is not of ordinary pages");
  return map(std::move(descriptor));
}

}  // namespace tensorlane::local
