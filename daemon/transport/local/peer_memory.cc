#include "daemon/transport/local/peer_memory.h"

#include <fmt/format.h>
#include <sodium.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "daemon/transport/handshake/socket.h"

namespace tensorlane::local {

MemoryProbe own_probe() {
  static const std::uint64_t value = [] {
    std::uint64_t random = 0;
    ::randombytes_buf(&random, sizeof random);
    return random;
  }();
  return {reinterpret_cast<std::uintptr_t>(&value), value};
}

Result<PeerProcess> peer_process(int socket) {
  ucred who{};
  socklen_t length = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) return PeerProcess{};
  // The handshake proves the key of the pair of hosts, but not that nobody passes its messages on and keeps the
  // descriptor.
  if (who.uid != 0 && who.uid != ::geteuid()) {
    return Status(Code::kPermissionDenied,
                  fmt::format("the peer is a process of user {}, this one is of user {}", who.uid, ::geteuid()),
                  "local transport",
                  "run the daemons of one machine as one user, or give them no common `local` address");
  }
  return PeerProcess{who.pid};
}

PeerMemory::PeerMemory(PeerProcess process, const MemoryProbe& probe) : process_(process) {
  std::uint64_t value = 0;
  if (!readable() || !read(probe.address, std::as_writable_bytes(std::span(&value, 1))) || value != probe.value)
    process_.id = 0;
}

bool PeerMemory::read(std::uint64_t address, std::span<std::byte> into) const {
  const iovec here{into.data(), into.size()}, there{reinterpret_cast<void*>(address), into.size()};
  const ssize_t count = ::process_vm_readv(process_.id, &here, 1, &there, 1, 0);
  if (count >= 0 && static_cast<std::size_t>(count) < into.size()) errno = EFAULT;
  return count == static_cast<ssize_t>(into.size());
}

}  // namespace tensorlane::local
