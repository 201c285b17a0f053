// What we need of sockets: an owned descriptor, addresses as text, and the tags of law 15.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/transport.h"

namespace tensorlane::handshake {

// An owned file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

// An IPv4 or IPv6 address with a port; or the name of a Unix socket that stands for one.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool wildcard() const;
  // "10.0.0.4:7111", "[fd00::4]:7111"; an IPv4 address mapped into IPv6 reads as IPv4. Of a Unix socket, the endpoint
  // that it stands for, or "this machine" where it has no name.
  std::string text() const;
};

// `address` is a numeric IPv4 or IPv6 address. Errors: kInvalidArgument.
Result<Endpoint> parse_endpoint(const std::string& address, std::uint16_t port);
// The Unix socket that stands for `endpoint` among processes that share `folder`, in which its file lies: only who may
// write there can take its name. Error: kInvalidArgument, where the path becomes too long.
Result<Endpoint> unix_endpoint(const std::string& folder, const Endpoint& endpoint);
// The path of a Unix socket; empty for any other endpoint.
std::string unix_path(const Endpoint& endpoint);
// Ok when nobody but this process's user (and root) can put a file into the folder. Error: kPermissionDenied.
Status check_own_folder(const std::string& folder);
// The network interface that has this numeric address: "eth0". Empty where none has.
std::string interface_of(const std::string& address);
Endpoint local_endpoint(int fd);
Endpoint peer_endpoint(int fd);

// "control" or the number.
std::string class_name(ClassId cls);
// "connection to host 3 (10.0.0.4:7111, class 1)": how every error names a flow.
std::string connection_name(HostIndex peer, const std::string& endpoint, ClassId cls);

// Marks everything that this socket sends: IP_TOS and IPV6_TCLASS first, SO_PRIORITY last, because setting the TOS
// overwrites the priority (law 15). The two ECT bits stay the kernel's. Priority 7 needs a privilege; without it 6 is
// set. Returns the priority that was set. What a Unix socket sends passes no network: nothing is set. Errors:
// kInternal.
Result<int> apply_tag(int fd, const ports::ClassTag& tag);

struct EffectiveTag {
  int dscp = -1, pcp = -1;  // -1: the kernel did not say
};
EffectiveTag read_tag(int fd);

// What every socket of a class gets besides its tag: no delay, and a send buffer that holds 1.5 windows in the kernel's
// own accounting. Where the kernel allows less (net.core.wmem_max), its automatic size stays, which may grow further
// than a fixed one.
void tune(int fd, Bytes window);

// Lets the kernel break a connection of which the other end has acknowledged nothing for 1.5 times `detection`, busy or
// idle: longer than control needs to find a dead host (law 10), which may be on another NIC's network than this socket.
void expect_life(int fd, Duration detection);

// Lets the kernel ask an idle peer, four times within `within` (once a second at most), whether its end of the
// connection still is: an end that has nothing to send would not learn that the other one has lost its own without a
// word. An answer is not expected: whoever is starved may be silent.
void notice_loss(int fd, Duration within);

// For data: strict priority may starve it for as long as urgent traffic moves, and the one who tells that from a fault
// is control (law 21), not the kernel. So the kernel waits for a day before it breaks a connection that acknowledges
// nothing; and it tries again every second where it can be told so (Linux 6.15), else what has stood still for a
// while stays silent for up to two minutes after it could go on.
void expect_starvation(int fd);

// What the other end has not acknowledged, as the kernel sees it. All zero where it does not say.
struct Unacknowledged {
  std::uint64_t bytes = 0;
  std::uint64_t retransmissions = 0;  // packets, of the whole connection
  std::uint32_t path_mtu = 0;
};
Unacknowledged read_unacknowledged(int fd);

// The error text of an errno: "Connection refused".
std::string errno_text(int error);

}  // namespace tensorlane::handshake
