#include "monitor/cli/run_ports.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace tensorlane::cli {
namespace {

constexpr std::uint16_t kFirst = 7100;
constexpr int kBlocks = 100;  // below the ports that the kernel gives to outgoing connections
constexpr int kLastPort = 65535;

// A socket in the abstract namespace, which has no file to be left over and no owner to keep other users out, and
// which, as the ports themselves, is of one network namespace. -1 with errno: EADDRINUSE where somebody has it.
int claim_name(const std::string& name) {
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t bytes = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), bytes);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

// Whether nobody listens there now, on any address.
bool port_is_free(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool free = ::bind(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
  ::close(fd);
  return free;
}

bool block_is_free(int first) {
  for (int port = first; port < first + RunPorts::kBlock; ++port) {
    if (!port_is_free(port)) return false;
  }
  return true;
}

}  // namespace

Result<RunPorts> RunPorts::claim(std::uint16_t first, const std::string& lab) {
  const auto name = [&lab](int port) { return fmt::format("tensorlane.ports.{}.{}", lab, port); };
  if (first != 0) {
    if (first + kBlock - 1 > kLastPort)
      return Status(Code::kInvalidArgument, fmt::format("no {} ports from {} on", kBlock, first), "--first-port",
                    fmt::format("use at most {}", kLastPort - kBlock + 1));
    const int fd = claim_name(name(first));
    if (fd >= 0) return RunPorts(first, fd);
    if (errno != EADDRINUSE)
      return Status(Code::kUnavailable, fmt::format("cannot claim ports: {}", std::strerror(errno)), name(first), "");
    return Status(Code::kAlreadyExists, fmt::format("another command has the ports from {} on", first), "--first-port",
                  "leave it out, which takes free ones, or name others");
  }
  for (int i = 0; i < kBlocks; ++i) {
    const auto block = static_cast<std::uint16_t>(kFirst + i * kBlock);
    const int fd = claim_name(name(block));
    // Daemons of other origin claim nothing. Those of a lab cannot be seen from here.
    if (fd >= 0 && (!lab.empty() || block_is_free(block))) return RunPorts(block, fd);
    if (fd >= 0) ::close(fd);
  }
  return Status(Code::kUnavailable, fmt::format("no {} ports are free", kBlock),
                fmt::format("ports {} to {} of this machine", kFirst, kFirst + kBlocks * kBlock - 1),
                "end other runs, or name free ports with --first-port");
}

RunPorts::~RunPorts() {
  if (claim_ >= 0) ::close(claim_);
}

}  // namespace tensorlane::cli
