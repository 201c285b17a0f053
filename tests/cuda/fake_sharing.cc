#include "fake_sharing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace tensorlane::fake_cuda {
namespace {

// Null: it cannot be mapped.
void* map(int descriptor, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

SharedFile SharedFile::make(std::size_t bytes) {
  SharedFile file;
  file.descriptor = ::memfd_create("fake GPU memory", MFD_CLOEXEC);
  struct stat facts {};
  if (file.descriptor >= 0 && ::ftruncate(file.descriptor, static_cast<off_t>(bytes)) == 0 &&
      ::fstat(file.descriptor, &facts) == 0) {
    file.inode = facts.st_ino;
    file.memory = map(file.descriptor, bytes);
  }
  if (file.memory == nullptr) close_file(file.descriptor);
  return file;
}

Ticket Ticket::of(const SharedFile& file, std::size_t bytes) {
  Ticket ticket;
  ticket.pid = ::getpid();
  ticket.descriptor = file.descriptor;
  ticket.bytes = bytes;
  ticket.inode = file.inode;
  return ticket;
}

std::optional<Ticket> Ticket::read(const IpcHandle& handle) {
  Ticket ticket;
  static_assert(sizeof(ticket) <= sizeof(handle.bytes));
  std::memcpy(&ticket, handle.bytes, sizeof(ticket));
  if (ticket.magic != kMagic || ticket.bytes == 0) return std::nullopt;
  return ticket;
}

IpcHandle Ticket::write() const {
  IpcHandle handle{};
  std::memcpy(handle.bytes, this, sizeof(*this));
  return handle;
}

bool Ticket::is_of_this_process() const {
  return pid == ::getpid();
}

SharedFile Ticket::open() const {
  SharedFile file;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return file;
  struct stat facts {};
  // The process may have closed it, and the number may be another file's since.
  if (::fstat(opened, &facts) == 0 && facts.st_ino == inode && static_cast<std::uint64_t>(facts.st_size) == bytes) {
    file.inode = inode;
    file.memory = map(opened, bytes);
  }
  close_file(opened);
  return file;
}

void forbid(void* memory, std::size_t bytes) {
  (void)::mmap(memory, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void unmap(void* memory, std::size_t bytes) {
  (void)::munmap(memory, bytes);
}

void close_file(int descriptor) {
  if (descriptor >= 0) (void)::close(descriptor);
}

}  // namespace tensorlane::fake_cuda
